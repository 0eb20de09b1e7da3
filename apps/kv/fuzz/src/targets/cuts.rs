//! Division of an input into parts, as given by its first bytes.

/// Maximum number of cuts.
const MAX_CUTS: usize = 6;

/// Input bytes and the parts in which they arrive.
pub struct Cuts<'a> {
    pub bytes: &'a [u8],
    /// Threshold of long values.
    pub long: usize,
    /// Choices, one bit each.
    pub bits: u8,
    positions: &'a [u8],
}

impl<'a> Cuts<'a> {
    /// Reads the choices, the threshold, and the cuts of the remaining bytes.
    pub fn read(data: &'a [u8]) -> Option<Self> {
        let (&[bits, long], rest) = data.split_first_chunk()?;
        let (positions, bytes) = rest.split_at_checked(MAX_CUTS)?;
        Some(Cuts { bytes, long: usize::from(long), bits, positions })
    }

    /// Returns the bytes as one part, cut, and byte by byte.
    pub fn each(&self) -> [Vec<&'a [u8]>; 3] {
        let mut ends: Vec<usize> = self.positions.iter().map(|at| usize::from(*at) * self.bytes.len() / 256).collect();
        ends.sort_unstable();
        let mut start = 0;
        let mut some = Vec::new();
        for end in ends.into_iter().chain([self.bytes.len()]) {
            some.push(&self.bytes[start..end]);
            start = end;
        }
        [vec![self.bytes], some, self.bytes.chunks(1).collect()]
    }
}
