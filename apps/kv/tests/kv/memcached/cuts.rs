//! Requests that arrive in parts.

use super::client::Client;
use super::steps::{Part, Step, steps};
use proptest::prelude::*;

/// Returns the bytes of all steps, with 1 for every CAS value.
fn bytes(steps: &[Step]) -> Vec<u8> {
    let parts = steps.iter().flat_map(|step| &step.parts);
    parts.flat_map(|part| if let Part::Bytes(bytes) = part { &bytes[..] } else { b"1" }).copied().collect()
}

/// Returns the reply to `bytes`, cut at `cuts`, with long values from `long` bytes on.
fn answered(bytes: &[u8], cuts: impl IntoIterator<Item = usize>, long: usize) -> (String, bool) {
    let mut client = Client::new(2, 1 << 20);
    client.limits.long = long;
    let mut start = 0;
    let mut out = Vec::new();
    for end in cuts.into_iter().chain([bytes.len()]) {
        out.extend(client.call(&bytes[start..end]));
        start = end;
    }
    (out.escape_ascii().to_string(), client.is_closed)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Replies depend neither on the cuts nor on the threshold of long values.
    #[test]
    fn replies_do_not_depend_on_parts(
        steps in steps(),
        mut cuts in prop::collection::vec(0..2000usize, 0..12),
        long in 1..20usize,
    ) {
        let bytes = bytes(&steps);
        cuts.iter_mut().for_each(|cut| *cut = (*cut).min(bytes.len()));
        cuts.sort();
        let whole = answered(&bytes, [], usize::MAX);
        prop_assert_eq!(&answered(&bytes, cuts.iter().copied(), usize::MAX), &whole);
        prop_assert_eq!(&answered(&bytes, cuts, long), &whole);
        prop_assert_eq!(&answered(&bytes, 0..bytes.len(), usize::MAX), &whole);
        prop_assert_eq!(&answered(&bytes, 0..bytes.len(), long), &whole);
    }
}
