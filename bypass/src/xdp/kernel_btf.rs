//! Functions of the kernel that programs call, found by name in its description in the BPF Type Format
//! (`Documentation/bpf/btf.rst` of Linux).

/// Description of the kernel's types and functions.
const KERNEL: &str = "/sys/kernel/btf/vmlinux";
/// Kind of a function.
const FUNC: u32 = 12;
/// Length of a type without the data that follow it.
const TYPE: usize = 12;

/// Returns the type number of the function `name` of the running kernel.
pub(super) fn function(name: &str) -> Option<i32> {
    find(&std::fs::read(KERNEL).ok()?, name)
}

/// Returns the number of the function `name` in a description.
fn find(btf: &[u8], name: &str) -> Option<i32> {
    let word = |at: usize| Some(u32::from_ne_bytes(*btf.get(at..)?.first_chunk()?));
    let [header, types, length, strings] = [word(4)?, word(8)?, word(12)?, word(16)?].map(|word| word as usize);
    let is_name = |at: usize| {
        let text = btf.get(header + strings + at..).unwrap_or_default();
        text.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
    };
    let (mut at, mut number) = (header + types, 1);
    while at < header + types + length {
        let info = word(at + 4)?;
        let (kind, members) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
        if kind == FUNC && is_name(word(at)? as usize) {
            return Some(number);
        }
        at += TYPE
            + match kind {
                // INT, VAR and DECL_TAG; ARRAY; STRUCT, UNION, DATASEC and ENUM64; ENUM and FUNC_PROTO.
                1 | 14 | 17 => 4,
                3 => 12,
                4 | 5 | 15 | 19 => 12 * members,
                6 | 13 => 8 * members,
                _ => 0,
            };
        number += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::btf;
    use super::*;

    #[test]
    fn function_is_found_after_types_of_other_lengths() {
        let description = btf::describe();
        assert_eq!(find(&description, "xsk_def_prog"), Some(btf::FUNCTION as i32));
        assert_eq!(find(&description, "xsk_def"), None);
        // The name of a variable.
        assert_eq!(find(&description, "xsk_prog_version"), None);
        for length in 0..description.len() {
            let _no_panic = find(&description[..length], "absent");
        }
    }
}
