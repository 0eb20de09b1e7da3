//! A server's [`Summary`] as text and as JSON.

use linerate_bypass::Summary;
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Serialize)]
struct Json<'a> {
    rx_frames: u64,
    rx_bytes: u64,
    tx_frames: u64,
    tx_bytes: u64,
    misdirected: u64,
    accepted: u64,
    connected: u64,
    failed: u64,
    finished: u64,
    broken: u64,
    copied_bytes: u64,
    drops: &'a BTreeMap<&'static str, u64>,
}

/// One JSON object with the fields of [`Summary`].
pub fn json(summary: &Summary) -> String {
    // Taken apart, so that a new field is not forgotten here.
    let Summary {
        rx_frames,
        rx_bytes,
        tx_frames,
        tx_bytes,
        misdirected,
        accepted,
        connected,
        failed,
        finished,
        broken,
        copied_bytes,
        ref drops,
    } = *summary;
    serde_json::to_string(&Json {
        rx_frames,
        rx_bytes,
        tx_frames,
        tx_bytes,
        misdirected,
        accepted,
        connected,
        failed,
        finished,
        broken,
        copied_bytes,
        drops,
    })
    .expect("a summary is made of plain numbers")
}

/// A few lines for people.
pub fn text(summary: &Summary) -> String {
    let Summary { rx_frames, rx_bytes, tx_frames, tx_bytes, misdirected, .. } = summary;
    let Summary { accepted, connected, failed, finished, broken, copied_bytes, .. } = summary;
    let drops = match summary.drops.iter().map(|(cause, n)| format!("{n} {cause}")).collect::<Vec<_>>() {
        none if none.is_empty() => "none".to_owned(),
        some => some.join(", "),
    };
    format!(
        "received    {rx_frames} frames, {rx_bytes} bytes; {misdirected} frames at another worker than their flow's\n\
         sent        {tx_frames} frames, {tx_bytes} bytes\n\
         connections {accepted} accepted, {connected} opened, {failed} failed, {finished} finished, {broken} broken\n\
         drops       {drops}\n\
         copied      {copied_bytes} bytes of payload"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary() -> Summary {
        let mut summary = Summary { rx_frames: 1, rx_bytes: 2, misdirected: 5, copied_bytes: 10, ..Default::default() };
        summary.drop_for("checksum", 3);
        summary.drop_for("no listener", 4);
        summary
    }

    #[test]
    fn the_json_has_every_counter_and_each_cause() {
        let value: serde_json::Value = serde_json::from_str(&json(&summary())).unwrap();
        assert_eq!(value["rx_bytes"], 2);
        assert_eq!(value["misdirected"], 5);
        assert_eq!(value["copied_bytes"], 10);
        assert_eq!(value["drops"], serde_json::json!({"checksum": 3, "no listener": 4}));
    }

    #[test]
    fn the_text_names_each_cause() {
        assert!(text(&summary()).contains("drops       3 checksum, 4 no listener\n"));
        assert!(text(&Summary::default()).contains("drops       none\n"));
    }
}
