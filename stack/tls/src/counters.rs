//! Counters of one worker.

use linerate_service::inspect::ServiceMetric;
use std::collections::BTreeMap;

/// Counters of one worker.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Counters {
    /// Completed handshakes, resumed ones included.
    pub handshakes: u64,
    /// Handshakes by a ticket of an earlier connection.
    pub resumed: u64,
    /// Handshakes that failed, except those that timed out or were displaced.
    pub failed: u64,
    /// Handshakes that took too long.
    pub timed_out: u64,
    /// Unfinished handshakes that newer ones displaced.
    pub displaced: u64,
    /// Connections whose peer finished without close_notify.
    pub truncated: u64,
    /// Records of application data sent.
    pub records_sent: u64,
    /// KeyUpdate messages sent.
    pub key_updates_sent: u64,
    /// KeyUpdate messages received.
    pub key_updates_received: u64,
    /// Tickets received.
    pub tickets_received: u64,
    /// Fatal alerts sent after handshakes, by number.
    pub alerts_sent: BTreeMap<u8, u64>,
    /// Fatal alerts received after handshakes, by number.
    pub alerts_received: BTreeMap<u8, u64>,
}

impl Counters {
    /// Returns the counters as metrics of a service.
    pub fn metrics(&self) -> impl Iterator<Item = ServiceMetric> {
        let alerts = |alerts: &BTreeMap<u8, u64>| alerts.values().sum();
        [
            ("tls handshakes", "full", self.handshakes - self.resumed),
            ("tls handshakes", "resumed", self.resumed),
            ("tls handshakes", "failed", self.failed),
            ("tls handshakes", "timed_out", self.timed_out),
            ("tls handshakes", "displaced", self.displaced),
            ("tls truncated", "", self.truncated),
            ("tls records", "", self.records_sent),
            ("tls key updates", "sent", self.key_updates_sent),
            ("tls key updates", "received", self.key_updates_received),
            ("tls alerts", "sent", alerts(&self.alerts_sent)),
            ("tls alerts", "received", alerts(&self.alerts_received)),
        ]
        .into_iter()
        .map(|(name, part, value)| ServiceMetric { name, part, value })
    }
}
