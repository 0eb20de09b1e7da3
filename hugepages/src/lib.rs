//! Hugepages of a host: pools, mounts and users; reserving and releasing pages.
//!
//! All state is read from, and written to, the kernel's files below [`Host::sys`] and [`Host::proc`]
//! (`Documentation/admin-guide/mm/hugetlbpage.rst` in the kernel's source). Reading needs no privilege, except for the
//! page sizes that another user's process has mapped. Writing needs root.
//!
//! hugetlbfs need not be mounted: EAL and the arena allocate pages by `memfd_create` and `mmap`. Existing mounts are
//! listed, because files in them hold pages.
//!
//! ```no_run
//! use linerate_hugepages::{Amount, Host, PageSize, Reservation};
//!
//! let host = Host::default();
//! let reservation = Reservation { size: PageSize::MB_2, pages: 256, node: Some(0), compact: false };
//! let reserved = host.reserve(&reservation)?.complete()?;
//! println!("node 0 has {} more pages", reserved.got);
//! host.release(PageSize::MB_2, Some(0), Amount::Pages(reserved.got))?;
//! # Ok::<(), linerate_hugepages::Error>(())
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod error;
mod host;
mod mounts;
mod pools;
mod processes;
mod record;
mod release;
mod reserve;
mod size;

pub use error::Error;
pub use host::{Host, Status};
pub use mounts::{HeldFile, Mount};
pub use pools::{NodePool, Pool};
pub use processes::{Mapped, Process};
pub use release::{Amount, Released};
pub use reserve::{Reservation, Reserved};
pub use size::{InvalidSize, PageSize, parse_bytes};
