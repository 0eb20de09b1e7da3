//! Reservation of pages.

use crate::host::write_number;
use crate::{Error, Host, PageSize};
use serde::Serialize;
use std::fs;
use std::io;
use std::path::Path;

/// Memory that is requested from the kernel at a time, so that progress can be reported.
const STEP: u64 = 512 << 20;

/// Pages to add to a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reservation {
    /// Page size.
    pub size: PageSize,
    /// Number of pages to add.
    pub pages: u64,
    /// NUMA node; `None` lets the kernel distribute the pages.
    pub node: Option<u32>,
    /// True to drop the page cache, compact memory, and retry if the kernel reserves too few pages. This takes time,
    /// and delays the next file accesses of all processes.
    pub compact: bool,
}

/// Result of a [`Reservation`].
#[must_use = "the kernel may have reserved fewer pages than requested"]
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reserved {
    /// Page size; bytes in JSON.
    pub page_size: PageSize,
    /// NUMA node; absent for all.
    pub node: Option<u32>,
    /// Requested pages.
    pub requested: u64,
    /// Reserved pages, at most `requested`.
    pub got: u64,
    /// Pages in the pool now, on this node or on all, surplus included.
    pub reserved: u64,
    /// True if caches were dropped and memory was compacted.
    pub compacted: bool,
}

impl Reserved {
    /// Converts a result with fewer pages than requested to an error. The reserved pages stay reserved.
    ///
    /// # Errors
    /// [`Error::Partial`].
    pub fn complete(self) -> Result<Reserved, Error> {
        if self.got == self.requested {
            return Ok(self);
        }
        let Reserved { page_size: size, requested, got, compacted, .. } = self;
        let total = self.reserved.saturating_add(requested - got);
        Err(Error::Partial { size, requested, got, total, compacted })
    }
}

impl Host {
    /// Adds pages to a pool. Returns the number of pages that the kernel has reserved, without an error if it lacks
    /// contiguous memory for some of the pages.
    ///
    /// # Errors
    /// [`Error::UnknownSize`], [`Error::UnknownNode`], [`Error::TooMany`], [`Error::NotEnoughMemory`], without an
    /// effect; [`Error::NotPermitted`] without root; [`Error::BootOnly`] if the kernel cannot reserve such pages at run
    /// time.
    pub fn reserve(&self, reservation: &Reservation) -> Result<Reserved, Error> {
        self.reserve_with_progress(reservation, &mut |_| ())
    }

    /// Adds pages to a pool as [`reserve`](Self::reserve) does. `progress` receives the number of pages reserved so
    /// far.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    pub fn reserve_with_progress(
        &self,
        reservation: &Reservation,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Reserved, Error> {
        let Reservation { size, node, .. } = *reservation;
        let reserved = self.reserve_by(reservation, &mut write_number, progress)?;
        let recorded = self.recorded(size, node).unwrap_or(0);
        self.set_recorded(size, node, recorded.saturating_add(reserved.got));
        Ok(reserved)
    }

    /// Returns the kernel's estimate of memory available without swapping, in bytes, or `None` if it has none.
    fn available_memory(&self) -> Option<u64> {
        let meminfo = fs::read_to_string(self.proc.join("meminfo")).ok()?;
        let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    }

    fn reserve_by(
        &self,
        reservation: &Reservation,
        write: &mut dyn FnMut(&Path, u64) -> Result<(), Error>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Reserved, Error> {
        let Reservation { size, pages, node, .. } = *reservation;
        let before = self.pool(size)?.persistent(node)?;
        // The kernel counts in an unsigned long. It treats a number of pages whose bytes overflow as a request for all
        // memory.
        let target = before.checked_add(pages).filter(|target| target.checked_mul(size.bytes()).is_some());
        let target = target.ok_or(Error::TooMany(pages))?;
        // A reservation of all memory would leave none for the host.
        if let Some(available) = self.available_memory()
            && pages.saturating_mul(size.bytes()) > available
        {
            return Err(Error::NotEnoughMemory { size, pages, most: available / size.bytes() });
        }
        let control = self.pool_control(size, node);
        let step = (STEP / size.bytes()).max(1);
        let mut reserve_in_steps = |write: &mut dyn FnMut(&Path, u64) -> Result<(), Error>| {
            let mut got = 0u64;
            loop {
                let wanted = got.saturating_add(step).min(pages);
                write(&control, before + wanted).map_err(|error| match error {
                    Error::Io { source, .. } if source.kind() == io::ErrorKind::InvalidInput => {
                        Error::BootOnly { size, pages: target }
                    }
                    error => error,
                })?;
                let pool = self.pool(size)?;
                got = pool.persistent(node)?.saturating_sub(before).min(pages);
                progress(got);
                if got < wanted || got == pages {
                    let reserved = node.map_or(Ok(pool.reserved), |node| pool.node(node).map(|node| node.reserved))?;
                    return Ok(Reserved { page_size: size, node, requested: pages, got, reserved, compacted: false });
                }
            }
        };
        let first = reserve_in_steps(write)?;
        if first.got == pages || !reservation.compact {
            return Ok(first);
        }
        write(&self.proc.join("sys/vm/drop_caches"), 3)?;
        write(&self.proc.join("sys/vm/compact_memory"), 1)?;
        Ok(Reserved { compacted: true, ..reserve_in_steps(write)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pools::tests::Fake;

    fn asking(pages: u64) -> Reservation {
        Reservation { size: PageSize::MB_2, pages, node: None, compact: false }
    }

    #[test]
    fn pages_are_added_to_the_pool() {
        let fake = Fake::new();
        fake.pool(PageSize::MB_2, [10, 4, 0, 0]);
        let reserved = fake.host().reserve(&asking(6)).unwrap().complete().unwrap();
        assert_eq!((reserved.requested, reserved.got, reserved.reserved), (6, 6, 16));
        assert_eq!(fake.host().pool(PageSize::MB_2).unwrap().reserved, 16);
    }

    #[test]
    fn many_pages_are_requested_in_steps_until_the_kernel_has_no_more() {
        let fake = Fake::new();
        let run = |most: u64| {
            fake.pool(PageSize::MB_2, [10, 10, 0, 0]);
            let (mut written, mut seen) = (Vec::new(), Vec::new());
            let give = &mut |_: &Path, number: u64| {
                written.push(number);
                fake.pool(PageSize::MB_2, [number.min(most), 0, 0, 0]);
                Ok(())
            };
            let reserved = fake.host().reserve_by(&asking(600), give, &mut |got| seen.push(got)).unwrap();
            (reserved.got, written, seen)
        };
        assert_eq!(run(u64::MAX), (600, vec![266, 522, 610], vec![256, 512, 600]));
        assert_eq!(run(300), (290, vec![266, 522], vec![256, 290]));
    }

    #[test]
    fn surplus_pages_do_not_count_as_requested() {
        let fake = Fake::new();
        fake.pool(PageSize::MB_2, [10, 0, 0, 3]);
        let mut written = Vec::new();
        let _ = fake.host().reserve_by(
            &asking(2),
            &mut |path, number| {
                written.push((path.to_owned(), number));
                Ok(())
            },
            &mut |_| (),
        );
        assert_eq!(written, [(fake.host().pool_control(PageSize::MB_2, None), 9)]);
    }

    #[test]
    fn node_receives_its_own_pages() {
        let fake = Fake::new();
        fake.pool(PageSize::MB_2, [8, 8, 0, 0]);
        fake.node(0, PageSize::MB_2, [5, 5, 0]);
        fake.node(1, PageSize::MB_2, [3, 3, 0]);
        let reserved = fake.host().reserve(&Reservation { node: Some(1), ..asking(4) }).unwrap();
        assert_eq!((reserved.got, reserved.reserved, reserved.node), (4, 7, Some(1)));
        assert_eq!(fake.host().pool(PageSize::MB_2).unwrap().node(0).unwrap().reserved, 5);
    }

    #[test]
    fn partial_reservation_reports_the_boot_parameter() {
        let fake = Fake::new();
        fake.pool(PageSize::GB_1, [1, 1, 0, 0]);
        let reservation = Reservation { size: PageSize::GB_1, ..asking(4) };
        let reserved = fake.host().reserve_by(
            &reservation,
            &mut |_, _| {
                fake.pool(PageSize::GB_1, [3, 3, 0, 0]);
                Ok(())
            },
            &mut |_| (),
        );
        let reserved = reserved.unwrap();
        assert_eq!((reserved.requested, reserved.got, reserved.reserved), (4, 2, 3));
        let error = reserved.complete().unwrap_err().to_string();
        assert!(error.starts_with("the kernel gave 2 of 4 pages of 1 GB"), "{error}");
        assert!(error.contains("--compact") && error.ends_with("boot with hugepagesz=1G hugepages=5"), "{error}");
    }

    #[test]
    fn caches_are_dropped_only_on_request_and_if_pages_are_missing() {
        let fake = Fake::new();
        let run = |compact, gives: &[u64]| {
            fake.pool(PageSize::MB_2, [0; 4]);
            let mut gives = gives.iter();
            let mut written = Vec::new();
            let reserved = fake.host().reserve_by(
                &Reservation { compact, ..asking(4) },
                &mut |path, number| {
                    written.push((path.strip_prefix(fake.path()).unwrap().display().to_string(), number));
                    if path.ends_with("nr_hugepages") {
                        fake.pool(PageSize::MB_2, [*gives.next().unwrap(), 0, 0, 0]);
                    }
                    Ok(())
                },
                &mut |_| (),
            );
            (reserved.unwrap(), written)
        };
        let control = "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages".to_owned();
        let (reserved, written) = run(true, &[1, 3]);
        assert_eq!((reserved.got, reserved.compacted), (3, true));
        let [caches, compact] = ["proc/sys/vm/drop_caches", "proc/sys/vm/compact_memory"].map(str::to_owned);
        assert_eq!(written, [(control.clone(), 4), (caches, 3), (compact, 1), (control.clone(), 4)]);
        assert!(!reserved.complete().unwrap_err().to_string().contains("--compact"));
        assert_eq!(run(true, &[4]).1, [(control.clone(), 4)]);
        assert_eq!(run(false, &[1]).1, [(control, 4)]);
    }

    #[test]
    fn errors_of_the_kernel_have_remedies() {
        let fake = Fake::new();
        fake.pool(PageSize::GB_1, [0; 4]);
        let reservation = Reservation { size: PageSize::GB_1, ..asking(2) };
        let refused = |kind: io::ErrorKind| {
            let result =
                fake.host().reserve_by(&reservation, &mut |path, _| Err(Error::write(path, kind.into())), &mut |_| ());
            result.unwrap_err().to_string()
        };
        assert!(refused(io::ErrorKind::PermissionDenied).contains("run this with sudo"));
        assert!(refused(io::ErrorKind::ReadOnlyFilesystem).contains("inside a container"));
        assert!(refused(io::ErrorKind::InvalidInput).contains("boot with hugepagesz=1G hugepages=2"));
    }

    #[test]
    fn uncountable_reservation_is_rejected_without_an_effect() {
        let fake = Fake::new();
        fake.pool(PageSize::MB_2, [1, 1, 0, 0]);
        for pages in [u64::MAX, u64::MAX - 1, 1 << 60] {
            assert!(matches!(fake.host().reserve(&asking(pages)), Err(Error::TooMany(_))), "{pages}");
        }
        assert_eq!(fake.host().pool(PageSize::MB_2).unwrap().reserved, 1);
    }

    #[test]
    fn reservation_beyond_available_memory_is_rejected_without_an_effect() {
        let fake = Fake::new();
        fake.pool(PageSize::MB_2, [1, 1, 0, 0]);
        fake.write("proc/meminfo", "MemTotal:  99999 kB\nMemAvailable:      8192 kB\n");
        let error = fake.host().reserve(&asking(5)).unwrap_err().to_string();
        assert!(error.ends_with("request at most 4"), "{error}");
        assert_eq!(fake.host().pool(PageSize::MB_2).unwrap().reserved, 1);
        assert_eq!(fake.host().reserve(&asking(4)).unwrap().got, 4);
    }

    #[test]
    fn unknown_size_or_node_is_rejected() {
        let fake = Fake::new();
        fake.pool(PageSize::MB_2, [0; 4]);
        let host = fake.host();
        let reservation = Reservation { size: PageSize::GB_1, ..asking(1) };
        assert!(matches!(host.reserve(&reservation), Err(Error::UnknownSize { .. })));
        assert!(matches!(host.reserve(&Reservation { node: Some(3), ..asking(1) }), Err(Error::UnknownNode { .. })));
    }
}
