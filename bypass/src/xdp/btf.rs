//! Description of the program in the BPF Type Format (`Documentation/bpf/btf.rst` of Linux).
//!
//! libxdp recognises the program by the name of its function and by the variable `xsk_prog_version` in the section
//! `xdp_metadata`, whose type is a pointer to an array with the version as its length.

pub(super) const NAME: &std::ffi::CStr = c"xsk_def_prog";
/// Type number of the program's function.
pub(super) const FUNCTION: u32 = 8;
/// Version of the program that libxdp expects (`XSK_PROG_VERSION`).
const VERSION: u32 = 1;

const INT: u32 = 1;
const PTR: u32 = 2;
const ARRAY: u32 = 3;
const FUNC: u32 = 12;
const FUNC_PROTO: u32 = 13;
const VAR: u32 = 14;
const DATASEC: u32 = 15;

pub(super) fn describe() -> Vec<u8> {
    let mut strings = vec![0];
    let mut name = |text: &str| {
        let at = strings.len() as u32;
        strings.extend(text.bytes().chain([0]));
        at
    };
    let info = |kind: u32, members: u32| kind << 24 | members;
    const SIGNED: u32 = 1 << 24;
    #[rustfmt::skip]
    let types: [u32; 34] = [
        // 1: int
        name("int"), info(INT, 0), 4, SIGNED | 32,
        // 2: int[VERSION]
        0, info(ARRAY, 0), 0, 1, 1, VERSION,
        // 3: int (*)[VERSION]
        0, info(PTR, 0), 2,
        // 4: the variable, global
        name("xsk_prog_version"), info(VAR, 0), 3, 1,
        // 5: its section of 8 bytes: type, offset and size of the variable
        name("xdp_metadata"), info(DATASEC, 1), 8, 4, 0, 8,
        // 6: void *
        0, info(PTR, 0), 0,
        // 7: int (void *ctx)
        0, info(FUNC_PROTO, 1), 1, name("ctx"), 6,
        // 8: the program, static
        name("xsk_def_prog"), info(FUNC, 0), 7,
    ];
    let length = (types.len() * 4) as u32;
    let header = [0x0001_eb9f, 24, 0, length, length, strings.len() as u32];
    let words = header.iter().chain(&types).flat_map(|word| word.to_ne_bytes());
    words.chain(strings).collect()
}
