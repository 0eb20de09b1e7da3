//! Programs that the library can serve: dynamically linked ELF files of this machine.

use std::fs::{self, File, Metadata};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Bytes of the file that are examined: the headers and the notes, which linkers place in front.
const EXAMINED: u64 = 64 << 10;
/// Interpreters in a chain of scripts (execve(2) permits four).
const MOST_SCRIPTS: usize = 4;

/// Reason why a program cannot run on the stack.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    #[error("{0}: no such program in PATH")]
    NotFound(String),
    #[error("{}: {source}: name a program that can be read", program.display())]
    Unreadable { program: PathBuf, source: std::io::Error },
    #[error("{}: {reason}, so the library cannot replace its socket calls: {remedy}", program.display())]
    Unsupported { program: PathBuf, reason: &'static str, remedy: &'static str },
}

/// Returns the file that execvp(3) would execute for `name`.
pub fn find(name: &str) -> Result<PathBuf, ProgramError> {
    if name.contains('/') {
        return Ok(name.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_program = |file: &PathBuf| fs::metadata(file).is_ok_and(|of| of.is_file() && of.mode() & 0o111 != 0);
    let found = std::env::split_paths(&path).map(|directory| directory.join(name)).find(is_program);
    found.ok_or_else(|| ProgramError::NotFound(name.to_owned()))
}

/// Checks that the library is loaded into `program`, or into the interpreter of a script.
pub fn check(program: &Path) -> Result<(), ProgramError> {
    let mut program = program.to_owned();
    for _ in 0..MOST_SCRIPTS {
        let unreadable = |source| ProgramError::Unreadable { program: program.clone(), source };
        let mut start = Vec::new();
        let file = File::open(&program).map_err(unreadable)?;
        let metadata = file.metadata().map_err(unreadable)?;
        file.take(EXAMINED).read_to_end(&mut start).map_err(unreadable)?;
        let refused = |(reason, remedy)| ProgramError::Unsupported { program: program.clone(), reason, remedy };
        if changes_user(&metadata) {
            return Err(refused(("it changes its user", "run it as that user without the set-user-ID bit")));
        }
        match interpreter(&start) {
            Some(next) => program = next,
            None => return check_elf(&start).map_err(refused),
        }
    }
    Ok(())
}

/// Returns whether the dynamic linker ignores `LD_PRELOAD` (ld.so(8), secure-execution mode).
fn changes_user(of: &Metadata) -> bool {
    let mode = of.permissions().mode();
    mode & 0o4000 != 0 && of.uid() != rustix::process::geteuid().as_raw()
        || mode & 0o2000 != 0 && of.gid() != rustix::process::getegid().as_raw()
}

/// Returns the interpreter of a script. For `env`, that is the program which it starts.
fn interpreter(start: &[u8]) -> Option<PathBuf> {
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    let mut words = line.split_whitespace();
    let first = words.next()?;
    let started = if first.ends_with("/env") { words.find(|word| !word.starts_with('-')) } else { None };
    Some(started.and_then(|name| find(name).ok()).unwrap_or_else(|| first.into()))
}

type Reason = (&'static str, &'static str);

/// Checks the headers of an ELF file (System V ABI, chapters 4 and 5).
fn check_elf(start: &[u8]) -> Result<(), Reason> {
    const PT_INTERP: u32 = 3;
    const PT_NOTE: u32 = 4;
    const HEADER: usize = 56;
    if !start.starts_with(b"\x7fELF") {
        return Err(("it is not an ELF file or a script", "give the program that interprets it"));
    }
    if start.get(4) != Some(&2) {
        return Err(("it is a 32-bit program", "use the 64-bit one"));
    }
    let field = |at: usize| start.get(at..at + 8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes")));
    let half = |at: usize| start.get(at..at + 2).map(|bytes| u16::from_le_bytes(bytes.try_into().expect("2 bytes")));
    let word = |at: usize| start.get(at..at + 4).map(|bytes| u32::from_le_bytes(bytes.try_into().expect("4 bytes")));
    let position = |value: Option<u64>| value.and_then(|value| usize::try_from(value).ok());
    let (table, entries) = (position(field(32)).unwrap_or(0), half(56).unwrap_or(0));
    let headers = (0..usize::from(entries)).map(|n| table.saturating_add(n * HEADER));
    let mut is_dynamic = false;
    for header in headers {
        match word(header) {
            Some(PT_INTERP) => is_dynamic = true,
            Some(PT_NOTE) => {
                let (at, len) = (position(field(header + 8)), position(field(header + 32)));
                let note = at.zip(len).and_then(|(at, len)| start.get(at..at.saturating_add(len)));
                if note.is_some_and(|note| note.windows(4).any(|name| name == b"Go\0\0")) {
                    return Err(("it is a Go program, which calls the kernel directly", "use linerate kv or http"));
                }
            }
            _ => {}
        }
    }
    if is_dynamic { Ok(()) } else { Err(("it is linked statically", "use a dynamically linked build")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// Returns an ELF file with program headers of these types, and `note` as the content of the notes.
    fn elf(class: u8, types: &[u32], note: &[u8]) -> Vec<u8> {
        let mut file = vec![0; 64 + 56 * types.len()];
        file[..5].copy_from_slice(&[0x7f, b'E', b'L', b'F', class]);
        file[32..40].copy_from_slice(&64_u64.to_le_bytes());
        file[56..58].copy_from_slice(&(types.len() as u16).to_le_bytes());
        let end = file.len() as u64;
        for (n, kind) in types.iter().enumerate() {
            let header = &mut file[64 + 56 * n..];
            header[..4].copy_from_slice(&kind.to_le_bytes());
            header[8..16].copy_from_slice(&end.to_le_bytes());
            header[32..40].copy_from_slice(&(note.len() as u64).to_le_bytes());
        }
        file.extend_from_slice(note);
        file
    }

    #[test]
    fn programs_that_the_library_cannot_serve_are_refused() {
        for (file, reason) in [
            (elf(2, &[1, 3, 4], b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0"), None),
            (elf(2, &[1, 4], b""), Some("it is linked statically")),
            (elf(2, &[1, 3, 4], b"\x04\0\0\0\x08\0\0\0\x04\0\0\0Go\0\0abcdefgh"), Some("it is a Go program")),
            (elf(1, &[1, 3], b""), Some("it is a 32-bit program")),
            (b"MZ".to_vec(), Some("it is not an ELF file")),
            (elf(2, &[1, 3], b"")[..70].to_vec(), Some("it is linked statically")),
        ] {
            let refused = check_elf(&file).err().map(|(reason, _)| reason);
            assert_eq!(refused.is_none(), reason.is_none(), "{refused:?} {reason:?}");
            assert!(refused.unwrap_or_default().starts_with(reason.unwrap_or_default()), "{refused:?} {reason:?}");
        }
    }

    #[test]
    fn script_is_checked_by_its_interpreter() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, content: &[u8]| {
            let path = directory.path().join(name);
            File::create(&path).unwrap().write_all(content).unwrap();
            path
        };
        let fixed = write("static", &elf(2, &[1], b""));
        let script = write("script", format!("#!{} -x\n", fixed.display()).as_bytes());
        assert!(check(&script).unwrap_err().to_string().contains("static: it is linked statically"));
        check(&write("shell", b"#!/usr/bin/env -S sh\n")).unwrap();
        check(&find("sh").unwrap()).unwrap();
        assert!(find("no-such-program-here").is_err());
    }
}
