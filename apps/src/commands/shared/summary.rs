//! A server's [`Summary`] as text and as JSON.

use linerate::{Summary, Verbs, Via};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// A [`Summary`] formatted as a few lines of text, or serialised as one JSON object.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub struct SummaryReport<'a> {
    #[serde(serialize_with = "Fields::serialize")]
    summary: &'a Summary,
    /// Units in which the network receives and sends.
    #[serde(skip)]
    units: [&'static str; 2],
    /// Units that are retransmitted.
    #[serde(skip)]
    retransmitted_units: &'static str,
}

/// Fields of [`Summary`]; a missing field is a compile error.
#[derive(Serialize)]
#[serde(remote = "Summary")]
struct Fields {
    rx_frames: u64,
    rx_bytes: u64,
    turns: u64,
    busy_turns: u64,
    bursts: u64,
    sleeps: u64,
    wakeups: u64,
    cpu_us: u64,
    tx_frames: u64,
    tx_bytes: u64,
    misdirected: u64,
    accepted: u64,
    connected: u64,
    failed: u64,
    finished: u64,
    broken: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    retransmitted: Option<u64>,
    copied_bytes: u64,
    #[serde(with = "VerbsFields", skip_serializing_if = "is_nothing")]
    verbs: Verbs,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    verbs_errors: BTreeMap<&'static str, u64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    congestion: BTreeMap<&'static str, u64>,
    drops: BTreeMap<&'static str, u64>,
}

/// Requests posted to RDMA devices.
#[derive(Serialize)]
#[serde(remote = "Verbs")]
struct VerbsFields {
    requests: u64,
    posts: u64,
    buffers: u64,
    requests_completed: u64,
    buffers_completed: u64,
    credit_stalls: u64,
    queue_stalls: u64,
}

fn is_nothing(verbs: &Verbs) -> bool {
    *verbs == Verbs::default()
}

impl<'a> SummaryReport<'a> {
    /// Creates the report of a `summary` of workers over `via`.
    pub fn new(summary: &'a Summary, via: &Via) -> Self {
        let units = match via {
            Via::Kernel => ["reads", "writes"],
            Via::Rdma { .. } | Via::Roce { .. } => ["messages"; 2],
            _ => ["frames"; 2],
        };
        let retransmitted_units = match via {
            Via::Rdma { .. } => "datagrams",
            Via::Roce { .. } => "packets",
            _ => "segments",
        };
        SummaryReport { summary, units, retransmitted_units }
    }
}

impl fmt::Display for SummaryReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { rx_frames, rx_bytes, tx_frames, tx_bytes, misdirected, .. } = self.summary;
        let Summary { turns, busy_turns, bursts, sleeps, wakeups, cpu_us, .. } = self.summary;
        let cpu = Duration::from_micros(*cpu_us);
        let Summary { accepted, connected, failed, finished, broken, copied_bytes, verbs, .. } = self.summary;
        let drops = match self.summary.drops.iter().map(|(cause, n)| format!("{n} {cause}")).collect::<Vec<_>>() {
            none if none.is_empty() => "none".to_owned(),
            some => some.join(", "),
        };
        let unit = self.retransmitted_units;
        let retransmitted =
            self.summary.retransmitted.map_or_else(String::new, |n| format!("; {n} {unit} retransmitted"));
        let [reads, writes] = self.units;
        let forwarded = match reads {
            "frames" => format!("; {misdirected} frames forwarded to the worker of their flow"),
            _ => String::new(),
        };
        let received = if reads == "reads" { "data" } else { reads };
        write!(
            f,
            "received    {rx_frames} {reads}, {rx_bytes} bytes{forwarded}\n\
             turns       {turns}, {busy_turns} with work, {bursts} that received {received}\n\
             slept       {sleeps} times, {wakeups} times until there was work; processor time {cpu:.2?}\n\
             sent        {tx_frames} {writes}, {tx_bytes} bytes{retransmitted}\n\
             connections {accepted} accepted, {connected} opened, {failed} failed, {finished} finished, {broken} broken\n\
             drops       {drops}\n\
             copied      {copied_bytes} bytes of payload"
        )?;
        if is_nothing(verbs) {
            return Ok(());
        }
        let Verbs { requests, posts, buffers, requests_completed, buffers_completed, credit_stalls, queue_stalls } =
            verbs;
        let errors = self.summary.verbs_errors.iter().map(|(status, n)| format!("; {n} {status}")).collect::<String>();
        write!(
            f,
            "\nposted      {requests} requests by {posts} calls, {buffers} buffers\n\
             completed   {requests_completed} requests, {buffers_completed} buffers{errors}\n\
             waited      {credit_stalls} times for buffers of peers, {queue_stalls} for send queues"
        )?;
        let congestion: Vec<_> = self.summary.congestion.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
        if congestion.is_empty() { Ok(()) } else { write!(f, "\ncongestion  {}", congestion.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary() -> Summary {
        let mut summary = Summary { rx_frames: 1, rx_bytes: 2, misdirected: 5, copied_bytes: 10, ..Default::default() };
        (summary.turns, summary.busy_turns, summary.bursts) = (30, 20, 15);
        summary.drop_for("checksum", 3);
        summary.drop_for("no listener", 4);
        summary
    }

    #[test]
    fn json_has_every_counter_and_drop_cause() {
        let value: serde_json::Value = serde_json::to_value(SummaryReport::new(&summary(), &Via::Eal)).unwrap();
        assert_eq!(value["rx_bytes"], 2);
        assert_eq!(value["misdirected"], 5);
        assert_eq!((&value["turns"], &value["busy_turns"], &value["bursts"]), (&30.into(), &20.into(), &15.into()));
        assert_eq!(value["copied_bytes"], 10);
        assert_eq!(value["drops"], serde_json::json!({"checksum": 3, "no listener": 4}));
    }

    #[test]
    fn text_names_each_drop_cause() {
        assert!(
            SummaryReport::new(&summary(), &Via::Eal).to_string().contains("drops       3 checksum, 4 no listener\n")
        );
        assert!(SummaryReport::new(&Summary::default(), &Via::Kernel).to_string().contains("drops       none\n"));
    }
    #[test]
    fn units_are_those_of_the_network() {
        let summary = Summary { rx_frames: 3, tx_frames: 4, misdirected: 5, ..Summary::default() };
        for (via, received, sent, retransmitted) in [
            ("kernel", "3 reads, 0 bytes\n", "4 writes, 0 bytes", "segments"),
            ("rdma:rxe0", "3 messages, 0 bytes\n", "4 messages, 0 bytes", "datagrams"),
            ("roce:af_xdp:eth0", "3 messages, 0 bytes\n", "4 messages, 0 bytes", "packets"),
            ("tap:lr0", "3 frames, 0 bytes; 5 frames forwarded", "4 frames, 0 bytes", "segments"),
        ] {
            let via = via.parse().unwrap();
            let text = SummaryReport::new(&summary, &via).to_string();
            assert!(text.contains(&format!("received    {received}")), "{via}: {text}");
            assert!(text.contains(&format!("sent        {sent}\n")), "{via}: {text}");
            let text = SummaryReport::new(&Summary { retransmitted: Some(6), ..summary.clone() }, &via).to_string();
            assert!(text.contains(&format!("{sent}; 6 {retransmitted} retransmitted\n")), "{via}: {text}");
        }
    }
}
