//! Where bytes are cut: the first bytes of an input say it.

/// Places at most.
const MOST: usize = 6;

/// What is to be read, and in which pieces.
pub struct Cuts<'a> {
    pub bytes: &'a [u8],
    /// From how many bytes on a value is long.
    pub long: usize,
    /// Choices, a bit each.
    pub bits: u8,
    places: &'a [u8],
}

impl<'a> Cuts<'a> {
    /// Choices, a length, and places where the rest is cut.
    pub fn read(data: &'a [u8]) -> Option<Self> {
        let (&[bits, long], rest) = data.split_first_chunk()?;
        let (places, bytes) = rest.split_at_checked(MOST)?;
        Some(Cuts { bytes, long: usize::from(long), bits, places })
    }

    /// The pieces: one, some, or a byte each.
    pub fn each(&self) -> [Vec<&'a [u8]>; 3] {
        let mut ends: Vec<usize> = self.places.iter().map(|at| usize::from(*at) * self.bytes.len() / 256).collect();
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
