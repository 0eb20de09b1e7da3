//! Failures to open a device.

use std::io;

/// Failure to open a device, with its remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "messages explain the fields")]
pub enum Error {
    #[error("rdma-core was not found: apt-get install ibverbs-providers librdmacm1")]
    NoLibraries,
    #[error("the kernel has no RDMA support loaded: {}", modprobe("ib_uverbs rdma_ucm", loads_modules()))]
    NoKernel,
    #[error("there is no RDMA device: {}", modprobe("its driver", loads_modules()))]
    NoDevices,
    #[error("there is no RDMA device {name}; there are: {}", there.join(", "))]
    NoDevice { name: String, there: Vec<String> },
    #[error("RDMA device {name}: rdma-core has no provider for its driver: apt-get install ibverbs-providers")]
    NoProvider { name: String },
    #[error("RDMA device {name}: {error}: run it as root, or let this user read and write /dev/infiniband/*")]
    Permission { name: String, error: io::Error },
    #[error(
        "RDMA device {name}: {error}: the limit of {} of locked memory is too low: ulimit -l unlimited, or run it as \
         root",
        kilobytes(*.limit)
    )]
    LockedMemory { name: String, error: io::Error, limit: u64 },
    #[error("RDMA device {name}: {error}: see linerate doctor")]
    Open { name: String, error: io::Error },
}

impl Error {
    /// Classifies an error for the device `name`.
    pub(super) fn of(name: &str, error: io::Error) -> Error {
        let name = name.to_owned();
        match error.raw_os_error() {
            Some(libc::EOPNOTSUPP) => Error::NoLibraries,
            Some(libc::ENOSYS) => Error::NoKernel,
            Some(libc::EACCES | libc::EPERM) => Error::Permission { name, error },
            Some(libc::ENOMEM) => match locked_memory() {
                Some(limit) => Error::LockedMemory { name, error, limit },
                None => Error::Open { name, error },
            },
            _ => Error::Open { name, error },
        }
    }
}

/// Returns this process's limit of locked memory in bytes, if it is limited.
fn locked_memory() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure outlives the call.
    let returned = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    (returned == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Adds the limit of locked memory to an error: the kernel returns the same error for the limit and for lack of
/// memory.
pub(super) fn explained(error: io::Error, len: usize) -> io::Error {
    match locked_memory() {
        Some(limit) if error.raw_os_error() == Some(libc::ENOMEM) => io::Error::new(
            io::ErrorKind::OutOfMemory,
            format!(
                "{error}: a region of {} counts towards the limit of locked memory, {}, which some drivers also \
                 apply to root: ulimit -l unlimited",
                kilobytes(len as u64),
                kilobytes(limit)
            ),
        ),
        _ => error,
    }
}

/// Returns true if the kernel can load modules.
pub(super) fn loads_modules() -> bool {
    std::path::Path::new("/proc/modules").exists()
}

/// Returns the commands that load `modules` and create a software device, or the alternative for a kernel without
/// loadable modules.
fn modprobe(modules: &str, loads_modules: bool) -> String {
    if loads_modules {
        format!(
            "modprobe {modules}, and for a software device over eth0: modprobe rdma_rxe && \
             rdma link add rxe0 type rxe netdev eth0"
        )
    } else {
        "this kernel cannot load modules: boot a kernel with CONFIG_INFINIBAND, such as Debian's, or choose another \
         --via"
            .to_owned()
    }
}

fn kilobytes(bytes: u64) -> String {
    format!("{} KB", bytes >> 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(number: i32) -> String {
        Error::of("mlx5_0", io::Error::from_raw_os_error(number)).to_string()
    }

    #[test]
    fn errors_name_device_and_remedy_in_one_line() {
        assert!(message(libc::EOPNOTSUPP).contains("apt-get install ibverbs-providers librdmacm1"));
        assert!(message(libc::ENOSYS).starts_with("the kernel has no RDMA support loaded: "));
        assert!(modprobe("ib_uverbs rdma_ucm", true).starts_with("modprobe ib_uverbs rdma_ucm, and for"));
        assert!(!modprobe("ib_uverbs rdma_ucm", false).contains("modprobe"));
        for number in [libc::EACCES, libc::EPERM] {
            assert!(message(number).starts_with("RDMA device mlx5_0: ") && message(number).contains("/dev/infiniband"));
        }
        assert!(message(libc::EIO).contains("mlx5_0"), "{}", message(libc::EIO));
        let other = Error::NoDevice { name: "mlx5_0".into(), there: vec!["rxe0".into(), "siw0".into()] };
        assert_eq!(other.to_string(), "there is no RDMA device mlx5_0; there are: rxe0, siw0");
        let locked = Error::LockedMemory { name: "a".into(), error: io::ErrorKind::OutOfMemory.into(), limit: 8 << 20 };
        assert!(locked.to_string().contains("8192 KB of locked memory"), "{locked}");
        for number in [libc::EOPNOTSUPP, libc::ENOSYS, libc::EACCES, libc::ENOMEM, libc::EIO] {
            assert!(!message(number).contains('\n'));
        }
    }

    #[test]
    fn failed_registration_names_memory_limit() {
        let other = explained(io::Error::from_raw_os_error(libc::EINVAL), 1);
        assert_eq!(other.raw_os_error(), Some(libc::EINVAL));
        let error = explained(io::Error::from_raw_os_error(libc::ENOMEM), 1 << 20);
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
        assert_eq!(error.to_string().contains("1024 KB"), locked_memory().is_some(), "{error}");
    }
}
