//! XDP program that passes every frame to the kernel, as an object file for `ip link set dev … xdpdrv obj`.

/// Section of the program.
pub const SECTION: &str = "xdp";

/// Instructions (RFC 9669): R0 = XDP_PASS, and exit.
const CODE: [u8; 16] = [0xb7, 0, 0, 0, 2, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];

/// Lengths of a file header, a section header and a symbol (System V ABI, "Object Files").
const FILE_HEADER: usize = 64;
const SECTION_HEADER: usize = 64;
const SYMBOL: usize = 24;

/// Names of the sections and of the program, each at its index in the string table.
const STRINGS: &[u8] = b"\0.strtab\0xdp\0.symtab\0pass\0";

/// Kinds of section: SHT_PROGBITS, SHT_SYMTAB and SHT_STRTAB.
const PROGRAM: u32 = 1;
const SYMBOLS: u32 = 2;
const NAMES: u32 = 3;

/// Returns the object file.
pub fn elf() -> Vec<u8> {
    let mut file = vec![0; FILE_HEADER];
    let mut headers = vec![0; SECTION_HEADER];
    let mut add = |name: u32, kind: u32, flags: u64, data: &[u8], [link, info]: [u32; 2], entry: usize| {
        file.resize(file.len().next_multiple_of(8), 0);
        headers.extend([name, kind].map(u32::to_le_bytes).concat());
        headers.extend([flags, 0, file.len() as u64, data.len() as u64].map(u64::to_le_bytes).concat());
        headers.extend([link, info].map(u32::to_le_bytes).concat());
        headers.extend([8, entry as u64].map(u64::to_le_bytes).concat());
        file.extend(data);
    };
    // SHF_ALLOC and SHF_EXECINSTR.
    let executable = 6;
    add(1, NAMES, 0, STRINGS, [0, 0], 0);
    add(9, PROGRAM, executable, &CODE, [0, 0], 0);
    // An undefined symbol, and the function "pass" (STB_GLOBAL, STT_FUNC) at the start of section 2.
    let mut symbols = vec![0; 2 * SYMBOL];
    symbols[SYMBOL..][..8].copy_from_slice(&[21, 0, 0, 0, 0x12, 0, 2, 0]);
    symbols[2 * SYMBOL - 8..].copy_from_slice(&(CODE.len() as u64).to_le_bytes());
    add(13, SYMBOLS, 0, &symbols, [1, 1], SYMBOL);
    file.resize(file.len().next_multiple_of(8), 0);
    let mut header = b"\x7fELF\x02\x01\x01".to_vec();
    header.resize(16, 0);
    // ET_REL, EM_BPF and EV_CURRENT.
    header.extend([1_u16, 247, 1, 0].map(u16::to_le_bytes).concat());
    header.extend([0, 0, file.len() as u64].map(u64::to_le_bytes).concat());
    header.extend([0; 4]);
    header.extend([FILE_HEADER, 0, 0, SECTION_HEADER, 4, 1].map(|value| (value as u16).to_le_bytes()).concat());
    file[..FILE_HEADER].copy_from_slice(&header);
    file.extend(headers);
    file
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_harness::program::ip;
    use linerate_harness::rerun::beside_others;
    use std::process::Command;

    #[test]
    fn names_are_at_the_indices_of_the_headers() {
        let name = |index: usize| STRINGS[index..].split(|byte| *byte == 0).next().unwrap();
        assert_eq!([1, 9, 13, 21].map(name), [&b".strtab"[..], SECTION.as_bytes(), b".symtab", b"pass"]);
    }

    #[test]
    fn kernel_accepts_the_program() {
        beside_others(|_| {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), elf()).unwrap();
            ip("link add lr8 type veth peer name lr9");
            ip(&format!("link set dev lr8 xdpdrv obj {} sec {SECTION}", file.path().display()));
            let shown = Command::new("ip").args(["link", "show", "dev", "lr8"]).output().unwrap();
            assert!(String::from_utf8_lossy(&shown.stdout).contains("name pass"), "{shown:?}");
        });
    }
}
