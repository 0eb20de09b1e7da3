//! Requests that come in pieces.

use super::client::Client;
use super::steps::{Part, Step, steps};
use proptest::prelude::*;

/// The bytes of all of them, with 1 for every unique number.
fn bytes(steps: &[Step]) -> Vec<u8> {
    let parts = steps.iter().flat_map(|step| &step.parts);
    parts.flat_map(|part| if let Part::Bytes(bytes) = part { &bytes[..] } else { b"1" }).copied().collect()
}

/// What is answered to `bytes`, cut at `cuts`, where data of `long` bytes are received apart.
fn answered(bytes: &[u8], cuts: impl IntoIterator<Item = usize>, long: usize) -> (String, bool) {
    let mut client = Client::new(2, 1 << 20);
    client.limits.long = long;
    let mut start = 0;
    let mut out = Vec::new();
    for end in cuts.into_iter().chain([bytes.len()]) {
        out.extend(client.ask(&bytes[start..end]));
        start = end;
    }
    (out.escape_ascii().to_string(), client.is_closed)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Wherever requests are cut, and whatever is received apart, the replies are the same.
    #[test]
    fn replies_do_not_depend_on_pieces(
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

    /// Whatever comes, in one piece or byte by byte, comes to the same.
    #[test]
    fn hostile_bytes_mean_the_same_however_they_are_cut(
        words in prop::collection::vec(prop_oneof![
            Just("\r\n".to_string()), Just(" ".into()), Just("a".into()), Just("1".into()), Just("-1".into()),
            "(get|gat|set|cas|append|incr|touch|delete|flush_all|stats|mg|ms|md|ma|me|mn) a ?",
            "[vtfcksqhlIbu] ", "[OTNRCFMDJ](|1|x|E) ", "[ -~]", any::<char>().prop_map(String::from),
        ], 0..60),
        long in 0..20usize,
    ) {
        let bytes = words.concat().into_bytes();
        let whole = answered(&bytes, [], usize::MAX);
        prop_assert_eq!(answered(&bytes, 0..bytes.len(), long), whole);
    }
}
