//! Parts of a server to which addresses of its instructions belong.

use crate::results::Part;
use addr2line::Context;
use addr2line::gimli::{Dwarf, EndianSlice, Error, NativeEndian, SectionId};
use object::{Object, ObjectSection};
use std::collections::HashMap;
use std::fs;
use std::io;
use std::ops::Range;

/// Crates of others whose functions belong to a part, whatever calls them.
const CRATES: [(&str, Part); 8] = [
    ("smoltcp", Part::Stack),
    ("crc32fast", Part::Stack),
    ("siphasher", Part::Stack),
    ("wide", Part::Stack),
    ("memchr", Part::Service),
    ("hyper", Part::Service),
    ("http", Part::Service),
    ("httparse", Part::Service),
];
/// Sources of `bypass` for all layers, whose inlined functions belong to their callers: memory, and prefetches, which
/// wait for it.
const HELPERS: [&str; 4] = ["arena/", "buffer_pool.rs", "prefetch.rs", "sync/"];
/// Beginnings of the names of libraries of drivers: DPDK, and providers of verbs.
const DRIVERS: [&str; 5] = ["librte_", "libibverbs", "librdmacm", "libmlx", "libefa"];
/// End of the names of providers that libibverbs loads: `librxe-rdmav34.so`.
const PROVIDER: &str = "-rdmav";

/// Executable mappings of a process.
#[derive(Debug)]
pub struct Mappings(Vec<Mapping>);

#[derive(Debug, PartialEq, Eq)]
struct Mapping {
    addresses: Range<u64>,
    /// Address of the first byte of the object.
    base: u64,
    /// Path of the object.
    object: String,
}

impl Mappings {
    /// Reads the mappings of a process that has loaded its libraries.
    pub fn read(process: u32) -> io::Result<Mappings> {
        fs::read_to_string(format!("/proc/{process}/maps")).map(|maps| Mappings::parse(&maps))
    }

    /// Parses a proc(5) `maps` file. The first mapping of an object has its first byte.
    fn parse(maps: &str) -> Mappings {
        let (mut mappings, mut bases) = (Vec::new(), HashMap::new());
        for line in maps.lines() {
            let Some((path, (range, rest))) = line.find('/').map(|at| &line[at..]).zip(line.split_once(' ')) else {
                continue;
            };
            let number = |text: &str| u64::from_str_radix(text, 16).ok();
            let Some((begin, end)) = range.split_once('-').and_then(|(one, other)| number(one).zip(number(other)))
            else {
                continue;
            };
            let base = *bases.entry(path).or_insert(begin);
            if rest.as_bytes().get(2) == Some(&b'x') {
                mappings.push(Mapping { addresses: begin..end, base, object: path.to_owned() });
            }
        }
        Mappings(mappings)
    }
}

/// Line tables of this program.
pub struct LineTables {
    context: Context<EndianSlice<'static, NativeEndian>>,
    /// Path of this program.
    program: String,
}

impl LineTables {
    /// Reads the line tables, if this program has any.
    pub fn load() -> io::Result<LineTables> {
        let program = fs::read_link("/proc/self/exe")?.to_string_lossy().into_owned();
        // A process has one profiler, which keeps the program until the process ends.
        let bytes: &'static [u8] = fs::read("/proc/self/exe")?.leak();
        let file = object::File::parse(bytes).map_err(io::Error::other)?;
        let section = |id: SectionId| {
            let data = file.section_by_name(id.name()).and_then(|section| section.data().ok());
            Ok::<_, Error>(EndianSlice::new(data.unwrap_or_default(), NativeEndian))
        };
        let context = Dwarf::load(section).and_then(Context::from_dwarf).map_err(io::Error::other)?;
        Ok(LineTables { context, program })
    }

    /// Returns the part to which the instruction at `address` belongs in a process of this program, if known.
    pub fn part(&self, address: u64, mappings: &Mappings) -> Option<Part> {
        // The kernel has the upper half of the addresses.
        if address >> 63 == 1 {
            return Some(Part::Kernel);
        }
        let mapping = mappings.0.iter().find(|mapping| mapping.addresses.contains(&address))?;
        if mapping.object != self.program {
            return part_of_library(&mapping.object);
        }
        // Programs are independent of their position: their first byte has address 0 in the line tables.
        let mut frames = self.context.find_frames(address - mapping.base).skip_all_loads().ok()?;
        // The innermost function that belongs to a part; those of the standard library belong to their callers.
        std::iter::from_fn(|| frames.next().ok()?).find_map(|frame| part_of_source(frame.location?.file?))
    }
}

/// Returns the part to which a library belongs, if known.
fn part_of_library(path: &str) -> Option<Part> {
    let name = path.rsplit('/').next()?;
    (DRIVERS.iter().any(|driver| name.starts_with(driver)) || name.contains(PROVIDER)).then_some(Part::Driver)
}

/// Returns the part to which a source file belongs, if known.
fn part_of_source(path: &str) -> Option<Part> {
    let (directory, file) = path.rsplit_once('/')?;
    // Inline functions in headers of DPDK.
    if file.starts_with("rte_") {
        return Some(Part::Driver);
    }
    let (package, source) = path.rsplit_once("/src/").unwrap_or((directory, file));
    let mut names = package.rsplit('/');
    let name = names.clone().next()?;
    let is_version = |rest: &str| rest.strip_prefix('-').is_some_and(|rest| rest.starts_with(char::is_numeric));
    let known = CRATES.iter().find(|(known, _)| name.strip_prefix(known).is_some_and(is_version));
    if known.is_some() || path.contains("/registry/") || path.starts_with("/rustc/") {
        return known.map(|(_, part)| *part);
    }
    let mut below = "";
    let part = names.find_map(|name| match (name, std::mem::replace(&mut below, name)) {
        ("bypass", "") if HELPERS.iter().any(|helper| source.starts_with(helper)) => Some(None),
        ("bypass", "rdma") | ("stack", _) => Some(Some(Part::Stack)),
        ("bypass", _) => Some(Some(Part::Driver)),
        ("apps", _) => Some(Some(Part::Service)),
        _ => None,
    });
    part.flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_files_belong_to_parts() {
        let registry = "/root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f";
        for (path, part) in [
            ("/home/stack/linerate/bypass/src/dpdk/port/mod.rs", Some(Part::Driver)),
            ("/home/stack/linerate/bypass/src/sync/refcount.rs", None),
            ("/home/stack/linerate/bypass/src/prefetch.rs", None),
            ("/home/apps/linerate/bypass/dpdk-sys/shim/shim.c", Some(Part::Driver)),
            ("/usr/include/dpdk/rte_ring.h", Some(Part::Driver)),
            ("/linerate/bypass/rdma/src/connection/mod.rs", Some(Part::Stack)),
            ("/linerate/bypass/rdma/roce/src/engine/mod.rs", Some(Part::Stack)),
            ("/bypass/linerate/stack/src/tcp/mod.rs", Some(Part::Stack)),
            ("/linerate/stack/split/src/queue.rs", Some(Part::Stack)),
            ("stack/kernel/src/poll.rs", Some(Part::Stack)),
            ("/linerate/apps/kv/src/commands/mod.rs", Some(Part::Service)),
            ("/stack/linerate/apps/load/src/services/echo.rs", Some(Part::Service)),
            ("/linerate/hugepages/src/lib.rs", None),
            (&format!("{registry}/smoltcp-0.14.0/src/wire/tcp.rs"), Some(Part::Stack)),
            (&format!("{registry}/crc32fast-1.5.0/src/specialized/pclmulqdq.rs"), Some(Part::Stack)),
            (&format!("{registry}/http-1.4.0/src/header/map.rs"), Some(Part::Service)),
            (&format!("{registry}/http-body-1.0.1/src/lib.rs"), None),
            (&format!("{registry}/hashbrown-0.17.0/src/raw.rs"), None),
            ("/home/apps/.cargo/registry/src/index/hashbrown-0.17.0/src/raw.rs", None),
            ("/rustc/59807616e1fa2540724bfbac14d7976d7e4a3860/library/core/src/ptr/mod.rs", None),
            ("mod.rs", None),
        ] {
            assert_eq!(part_of_source(path), part, "{path}");
        }
    }

    #[test]
    fn libraries_of_drivers_are_known() {
        for (path, part) in [
            ("/lib/x86_64-linux-gnu/librte_ethdev.so.23", Some(Part::Driver)),
            ("/usr/lib/x86_64-linux-gnu/dpdk/pmds-23.0/librte_net_vhost.so.23.0", Some(Part::Driver)),
            ("/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so", Some(Part::Driver)),
            ("/lib/x86_64-linux-gnu/libmlx5.so.1", Some(Part::Driver)),
            ("/lib/x86_64-linux-gnu/libc.so.6", None),
        ] {
            assert_eq!(part_of_library(path), part, "{path}");
        }
    }

    #[test]
    fn executable_mappings_are_relative_to_the_first_of_their_object() {
        let maps = "5600-5700 r--p 00000000 fe:00 12         /usr/bin/a b\n\
                    5700-5900 r-xp 00100000 fe:00 12         /usr/bin/a b\n\
                    7f00-7f10 rw-p 00000000 00:00 0 \n\
                    7f10-7f20 r--p 00000000 fe:00 13         /lib/c.so\n\
                    7f20-7f30 r-xp 00000010 fe:00 13         /lib/c.so\n\
                    7ffd-7fff r-xp 00000000 00:00 0          [vdso]\n";
        let mapping = |addresses, base, object: &str| Mapping { addresses, base, object: object.to_owned() };
        let expected = [mapping(0x5700..0x5900, 0x5600, "/usr/bin/a b"), mapping(0x7f20..0x7f30, 0x7f10, "/lib/c.so")];
        assert_eq!(Mappings::parse(maps).0, expected);
    }

    #[test]
    fn kernel_has_the_upper_half_of_the_addresses() {
        let lines = LineTables::load().unwrap();
        let mappings = Mappings::read(std::process::id()).unwrap();
        assert_eq!(lines.part(0xffff_ffff_8100_0000, &mappings), Some(Part::Kernel));
        assert_eq!(lines.part(16, &mappings), None);
    }
}
