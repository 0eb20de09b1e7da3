//! Snapshots of strings, for commands that run in steps.

use crate::store::{Long, Str};

/// Snapshot of a string. A long value is immutable, so the snapshot shares its bytes.
#[derive(Clone)]
pub enum Snapshot {
    Short(Vec<u8>),
    Long(Long),
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Snapshot({} bytes)", self.len())
    }
}

impl Snapshot {
    pub fn take(value: Option<Str<'_>>) -> Self {
        match value {
            None => Snapshot::Short(Vec::new()),
            Some(Str::Short(bytes)) => Snapshot::Short(bytes.to_vec()),
            Some(Str::Long(long)) => Snapshot::Long(long.clone()),
        }
    }

    pub fn byte_of(value: &Str<'_>, at: usize) -> Option<u8> {
        match value {
            Str::Short(bytes) => bytes.get(at).copied(),
            Str::Long(long) => (at < long.len()).then(|| long.range(at..at + 1).next().map_or(0, |part| part[0])),
        }
    }

    /// Copies the bytes of a value from `at` on to `out`, up to the end of the value or of `out`.
    pub fn copy_of(value: &Str<'_>, at: usize, out: &mut [u8]) {
        match value {
            Str::Short(bytes) => {
                let bytes = bytes.get(at..).unwrap_or_default();
                let count = bytes.len().min(out.len());
                out[..count].copy_from_slice(&bytes[..count]);
            }
            Str::Long(long) => {
                let end = at.saturating_add(out.len()).min(long.len());
                let mut filled = 0;
                for part in long.range(at.min(end)..end) {
                    out[filled..filled + part.len()].copy_from_slice(&part);
                    filled += part.len();
                }
            }
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Snapshot::Short(bytes) => bytes.len(),
            Snapshot::Long(long) => long.len(),
        }
    }

    /// Returns a nonempty part of the bytes from `at` on, or no bytes at the end.
    pub fn from(&self, at: usize) -> &[u8] {
        match self {
            Snapshot::Short(bytes) => bytes.get(at..).unwrap_or_default(),
            Snapshot::Long(long) => {
                let mut start = at;
                for part in long.parts() {
                    match part.get(start..) {
                        Some(rest) if !rest.is_empty() => return rest,
                        _ => start = start.saturating_sub(part.len()),
                    }
                }
                &[]
            }
        }
    }

    /// Copies the bytes from `at` on to `out` and returns their number. The rest of `out` is unchanged.
    pub fn copy(&self, mut at: usize, mut out: &mut [u8]) -> usize {
        let wanted = out.len();
        while !out.is_empty() {
            let bytes = self.from(at);
            if bytes.is_empty() {
                break;
            }
            let count = bytes.len().min(out.len());
            let (front, back) = out.split_at_mut(count);
            front.copy_from_slice(&bytes[..count]);
            (at, out) = (at + count, back);
        }
        wanted - out.len()
    }
}
