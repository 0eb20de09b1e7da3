//! hugetlbfs mounts, and the files in them that hold pages.

use crate::{Error, Host, PageSize};
use serde::Serialize;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Mounted hugetlbfs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mount {
    /// Mount point.
    pub path: PathBuf,
    /// Page size in bytes; absent if the kernel does not report it.
    pub page_size: Option<PageSize>,
    /// User id of the root directory's owner.
    pub uid: u32,
    /// Group id of the root directory's owner.
    pub gid: u32,
    /// Files that hold pages, whether mapped or left behind, as far as this user may see them.
    pub files: Vec<HeldFile>,
}

/// File on hugetlbfs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HeldFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Pages that the file holds, open or not.
    pub pages: u64,
}

impl Host {
    /// Returns the hugetlbfs mounts of this process's mount namespace.
    ///
    /// # Errors
    /// [`Error::Io`] if the mount table cannot be read.
    pub fn mounts(&self) -> Result<Vec<Mount>, Error> {
        let table = self.proc.join("mounts");
        let table = fs::read(&table).map_err(Error::io(&table))?;
        Ok(String::from_utf8_lossy(&table).lines().filter_map(parse).map(look_into).collect())
    }
}

/// Parses a line of `/proc/mounts` (fstab(5)): source, mount point, type, options.
fn parse(line: &str) -> Option<Mount> {
    let mut fields = line.split(' ');
    let (path, kind, options) = (fields.nth(1)?, fields.next()?, fields.next()?);
    if kind != "hugetlbfs" {
        return None;
    }
    let option = |name| options.split(',').find_map(|option| option.strip_prefix(name));
    Some(Mount {
        path: unescape(path).into(),
        page_size: option("pagesize=").and_then(|size| size.parse().ok()),
        uid: option("uid=").and_then(|uid| uid.parse().ok()).unwrap_or(0),
        gid: option("gid=").and_then(|gid| gid.parse().ok()).unwrap_or(0),
        files: Vec::new(),
    })
}

/// Decodes a path, in which the kernel writes white space and backslashes as three octal digits.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let octal = (first == b'\\').then(|| tail.get(..3)).flatten();
        match octal.and_then(|octal| u8::from_str_radix(str::from_utf8(octal).ok()?, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn look_into(mut mount: Mount) -> Mount {
    if let Some(size) = mount.page_size {
        collect(&mount.path, size, &mut mount.files);
        mount.files.sort_by(|a, b| a.path.cmp(&b.path));
    }
    mount
}

/// Adds the files of a directory. A directory that cannot be read is skipped: it belongs to another user, or has been
/// removed.
fn collect(directory: &Path, size: PageSize, files: &mut Vec<HeldFile>) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        // `metadata` of an entry does not follow symbolic links, so the walk ends.
        let Ok(metadata) = entry.metadata() else { continue };
        if metadata.is_dir() {
            collect(&entry.path(), size, files);
            continue;
        }
        let pages = metadata.blocks().saturating_mul(512) / size.bytes();
        if metadata.is_file() && pages > 0 {
            files.push(HeldFile { path: entry.path(), pages });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pools::tests::Fake;

    #[test]
    fn only_hugetlbfs_is_listed_with_page_size_and_owner() {
        let fake = Fake::new();
        fake.write(
            "proc/mounts",
            "proc /proc proc rw 0 0\n\
             hugetlbfs /nonexistent/a hugetlbfs rw,relatime,pagesize=2M 0 0\n\
             none /nonexistent/b\\040\\134c hugetlbfs rw,uid=1000,gid=27,mode=770,pagesize=1024M 0 0\n\
             tmpfs /hugetlbfs tmpfs rw 0 0\n\
             short line\n",
        );
        let mounts = fake.host().mounts().unwrap();
        assert_eq!(mounts.len(), 2);
        assert_eq!(mounts[0].page_size, Some(PageSize::MB_2));
        assert_eq!((mounts[0].uid, mounts[0].gid), (0, 0));
        assert_eq!(mounts[1].path, Path::new("/nonexistent/b \\c"));
        assert_eq!(mounts[1].page_size, Some(PageSize::GB_1));
        assert_eq!((mounts[1].uid, mounts[1].gid), (1000, 27));
    }

    #[test]
    fn files_that_hold_pages_are_found_in_subdirectories() {
        let fake = Fake::new();
        // With pages of 4 KB, an ordinary file can represent one on hugetlbfs.
        fake.write("huge/rtemap_0", &"x".repeat(8192));
        fake.write("huge/pod/rtemap_1", &"x".repeat(4096));
        fake.write("huge/empty", "");
        let mount_point = fake.path().join("huge");
        fake.write("proc/mounts", &format!("none {} hugetlbfs rw,pagesize=4K 0 0\n", mount_point.display()));
        let files = fake.host().mounts().unwrap().remove(0).files;
        let found: Vec<_> = files.iter().map(|file| (file.path.clone(), file.pages)).collect();
        assert_eq!(found, [(mount_point.join("pod/rtemap_1"), 1), (mount_point.join("rtemap_0"), 2)]);
    }

    #[test]
    fn malformed_escape_is_kept() {
        assert_eq!(unescape("a\\04"), "a\\04");
        assert_eq!(unescape("a\\0z0b"), "a\\0z0b");
        assert_eq!(unescape("a\\777"), "a\\777");
    }
}
