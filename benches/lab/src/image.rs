//! Guest image: Debian's kernel package, unpacked into a cache, and an initial RAM filesystem that mounts the host's
//! files.

use crate::error::{Context, Error, Result, failed};
use crate::log::Log;
use crate::program::Program;
use linerate_harness::until;
use rustix::fs::{FlockOperation, flock};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Time limit of downloads and unpacking, mostly of the kernel source for siw.
const DOWNLOAD: Duration = Duration::from_secs(400);
/// Maximum wait for another lab.
const ANOTHER: Duration = Duration::from_secs(1_200);
/// Prefix of incomplete cache directories.
const PARTIAL: &str = ".partial-";

/// Script that unpacks a kernel and its modules into the current directory and writes its version to `version`. The
/// kernel image is uncompressed here, because that would take an emulated machine longer than the rest of its boot.
const KERNEL: &str = r#"
    package=$(apt-cache depends linux-image-amd64 | sed -n 's/^ *Depends: \(linux-image-[^ ]*\)$/\1/p' | sed -n 1p)
    [ -n "$package" ] || { echo 'apt knows no linux-image-amd64' >&2; exit 1; }
    apt-get download -q -o APT::Sandbox::User=root "$package"
    dpkg -x ./*.deb .
    rm ./*.deb
    echo "${package#linux-image-}" >version
    packed=$(LC_ALL=C grep -abom 1 $'\xfd7zXZ' boot/vmlinuz-* | sed -n 1p)
    xz -dc --single-stream < <(tail -c "+$((${packed%%:*} + 1))" boot/vmlinuz-*) >vmlinux
    rm -r boot usr
    depmod -b . "$(<version)"
"#;

/// Script that builds siw.ko, which Debian's kernel omits, for kernel $1 in the current directory.
const SIW: &str = r#"
    version=$1
    series=$(cut -d. -f1,2 <<<"$version")
    apt-get download -q -o APT::Sandbox::User=root "linux-headers-$version" "linux-headers-${version%-amd64}-common" \
        "linux-kbuild-$series" "linux-source-$series"
    for package in linux-headers-*.deb linux-kbuild-*.deb; do dpkg -x "$package" .; done
    dpkg --fsys-tarfile linux-source-*.deb | tar -xO "./usr/src/linux-source-$series.tar.xz" |
        xz -dc | tar -x --strip-components=5 "linux-source-$series/drivers/infiniband/sw/siw"
    headers=$PWD/usr/src/linux-headers-$version
    # They name each other by where they would have been installed.
    sed -i "s#/usr/src/#$PWD/usr/src/#" "$headers/Makefile"
    make -s -C "$headers" "M=$PWD" CONFIG_RDMA_SIW=m modules
    strip -g siw.ko
    mkdir keep && mv siw.ko keep/ && find . -mindepth 1 -maxdepth 1 ! -name keep -exec rm -r {} + && mv keep/siw.ko . && rmdir keep
"#;

/// Init script. The guest's root is the host's, read-only, below a tmpfs overlay.
const INIT: &str = r#"#!/bin/busybox sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb LC_ALL=C
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev; mount -t proc proc /proc; mount -t sysfs sys /sys
for module in $(cat /modules/order); do insmod "/modules/$module"; done
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro host /lower || exit
mount -t tmpfs -o size=256m tmpfs /rw; mkdir /rw/upper /rw/work
mount -t overlay -o lowerdir=/lower,upperdir=/rw/upper,workdir=/rw/work,xino=off overlay /new || exit
mkdir -p /new/lib/modules; mount --bind /lower@MODULES@ /new/lib/modules
mount -t tmpfs tmpfs /new/run
mkdir -p /dev/pts /dev/shm; mount -t devpts devpts /dev/pts; mount -t tmpfs tmpfs /dev/shm
for directory in dev proc sys; do mount --move "/$directory" "/new/$directory"; done
ip link set lo up; hostname guest
exec switch_root /new @LAB@ agent
"#;

/// Modules of the init script: host files, overlay, and agent port.
const MODULES: [&str; 5] = ["virtio_pci", "9p", "9pnet_virtio", "overlay", "virtio_console"];

/// Kernel with its modules.
#[derive(Debug)]
pub struct Image {
    directory: PathBuf,
    version: String,
    cache: Cache,
}

impl Image {
    /// Returns the newest cached kernel, or downloads one.
    pub fn open(log: &Log) -> Result<Image> {
        let cache = Cache::open()?;
        let directory = match cache.newest("kernel-")? {
            Some(directory) => directory,
            None => {
                eprintln!("   downloading a kernel into {}", cache.directory.display());
                let made = cache.make(KERNEL, &[], log).map_err(unable)?;
                let version = fs::read_to_string(made.path().join("version")).context("version")?;
                cache.keep(made, &format!("kernel-{}", version.trim()))?
            }
        };
        let version = fs::read_to_string(directory.join("version")).context("version")?.trim().to_owned();
        Ok(Image { directory, version, cache })
    }

    /// Returns the kernel image.
    pub fn kernel(&self) -> PathBuf {
        self.directory.join("vmlinux")
    }

    /// Returns the siw module for this kernel, building it if it is not cached.
    pub fn siw(&self, log: &Log) -> Result<PathBuf> {
        let name = format!("siw-{}", self.version);
        let directory = match self.cache.newest(&name)? {
            Some(directory) => directory,
            None => {
                eprintln!("   building siw for the kernel, from its source");
                let made = self.cache.make(SIW, &[&self.version], log).map_err(|error| match error {
                    Error::Failed(text) => {
                        let cache = self.cache.directory.display();
                        Error::Failed(format!("{text}: if Debian has a newer kernel by now, remove {cache}"))
                    }
                    other => other,
                })?;
                self.cache.keep(made, &name)?
            }
        };
        Ok(directory.join("siw.ko"))
    }

    /// Creates an initial RAM filesystem in `directory`, which executes this program as the guest's agent.
    pub fn initramfs(&self, directory: &Path, log: &Log) -> Result<PathBuf> {
        let root = directory.join("initramfs");
        for name in ["bin", "dev", "proc", "sys", "modules", "lower", "rw", "new"] {
            fs::create_dir_all(root.join(name)).context("initramfs")?;
        }
        fs::copy("/bin/busybox", root.join("bin/busybox")).context("/bin/busybox, of the package busybox-static")?;
        let mut order = String::new();
        for module in MODULES {
            let mut command = Command::new("modprobe");
            command.arg("-d").arg(&self.directory).args(["-S", &self.version, "--show-depends", module]);
            let needed = Program::start("modprobe", &command, log)?.succeed()?;
            // Lines are `insmod PATH OPTIONS` or `builtin NAME`.
            for path in needed.stdout.lines().filter_map(|line| line.strip_prefix("insmod ")?.split(' ').next()) {
                let Some(name) = Path::new(path).file_name().and_then(|name| name.to_str()) else { continue };
                if !order.lines().any(|line| line == name) {
                    fs::copy(path, root.join("modules").join(name)).context(path)?;
                    order += name;
                    order += "\n";
                }
            }
        }
        fs::write(root.join("modules/order"), order).context("initramfs")?;
        let agent = std::env::current_exe().context("this program")?;
        let init = INIT
            .replace("@MODULES@", &self.directory.join("lib/modules").to_string_lossy())
            .replace("@LAB@", &agent.to_string_lossy());
        fs::write(root.join("init"), init).context("initramfs")?;
        fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755)).context("initramfs")?;
        let mut pack = Command::new("bash");
        pack.args(["-euo", "pipefail", "-c", "find . | busybox cpio -o -H newc >../initramfs.cpio"]).current_dir(&root);
        Program::start("cpio", &pack, log)?.succeed()?;
        Ok(directory.join("initramfs.cpio"))
    }
}

/// Turns a failed download of a kernel into [`Error::Unable`]: the lab cannot run without a kernel.
fn unable(error: Error) -> Error {
    match error {
        Error::Failed(text) => Error::Unable(format!("no kernel could be downloaded: {text}")),
        other => other,
    }
}

/// Cache of kernels, used by one lab at a time. Entries with their final name are complete.
#[derive(Debug)]
struct Cache {
    directory: PathBuf,
    _lock: fs::File,
}

impl Cache {
    /// Opens `linerate-lab` in the user's cache directory, waiting for other labs.
    fn open() -> Result<Cache> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let Some(base) = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache"))) else {
            return failed("neither XDG_CACHE_HOME nor HOME is set, so there is no cache directory");
        };
        let directory = base.join("linerate-lab");
        fs::create_dir_all(&directory).context(directory.to_string_lossy())?;
        let lock = fs::File::create(directory.join("lock")).context("lock")?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            eprintln!("   waiting for another lab to end");
            let is_own = || Ok(flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok());
            until::<Error>("the end of another lab", ANOTHER, is_own)?;
        }
        let cache = Cache { directory, _lock: lock };
        for partial in cache.named(PARTIAL)? {
            fs::remove_dir_all(&partial).context(partial.to_string_lossy())?;
        }
        Ok(cache)
    }

    /// Returns the entries with this prefix.
    fn named(&self, prefix: &str) -> Result<Vec<PathBuf>> {
        let entries = fs::read_dir(&self.directory).context(self.directory.to_string_lossy())?;
        let is_named = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix));
        Ok(entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_named).collect())
    }

    /// Returns the newest entry with this prefix.
    fn newest(&self, prefix: &str) -> Result<Option<PathBuf>> {
        let made = |path: &PathBuf| path.metadata().and_then(|metadata| metadata.modified()).ok();
        Ok(self.named(prefix)?.into_iter().max_by_key(made))
    }

    /// Runs `script` in a temporary directory of the cache.
    fn make(&self, script: &str, arguments: &[&str], log: &Log) -> Result<tempfile::TempDir> {
        let made = tempfile::Builder::new().prefix(PARTIAL).tempdir_in(&self.directory).context("cache")?;
        let mut command = Command::new("bash");
        command.args(["-euo", "pipefail", "-c", script, "bash"]).args(arguments).current_dir(made.path());
        Program::start("download", &command, log)?.succeed_within(DOWNLOAD)?;
        Ok(made)
    }

    /// Gives a complete directory its final name.
    fn keep(&self, made: tempfile::TempDir, name: &str) -> Result<PathBuf> {
        let path = self.directory.join(name);
        // After a power cut, an entry must not be incomplete under its final name.
        rustix::fs::syncfs(fs::File::open(made.path()).context("cache")?).context("cache")?;
        fs::rename(made.keep(), &path).context(path.to_string_lossy())?;
        Ok(path)
    }
}
