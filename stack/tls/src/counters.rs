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
    /// Handshakes beyond the limit of their source.
    pub refused: u64,
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
    /// Fatal alerts sent, by number.
    pub alerts_sent: BTreeMap<u8, u64>,
    /// Fatal alerts received, by number.
    pub alerts_received: BTreeMap<u8, u64>,
}

impl Counters {
    /// Returns the counters as metrics of a service.
    pub fn metrics(&self) -> impl Iterator<Item = ServiceMetric> {
        let alerts = |name, alerts: &BTreeMap<u8, u64>| {
            let mut by_name = BTreeMap::new();
            alerts.iter().for_each(|(alert, n)| *by_name.entry(alert_name(*alert)).or_default() += n);
            by_name.into_iter().map(move |(part, value)| ServiceMetric { name, part, value })
        };
        [
            ("tls handshakes", "full", self.handshakes - self.resumed),
            ("tls handshakes", "resumed", self.resumed),
            ("tls handshakes", "failed", self.failed),
            ("tls handshakes", "timed_out", self.timed_out),
            ("tls handshakes", "displaced", self.displaced),
            ("tls handshakes", "refused", self.refused),
            ("tls truncated", "", self.truncated),
            ("tls records", "", self.records_sent),
            ("tls key updates", "sent", self.key_updates_sent),
            ("tls key updates", "received", self.key_updates_received),
        ]
        .into_iter()
        .map(|(name, part, value)| ServiceMetric { name, part, value })
        .chain(alerts("tls alerts sent", &self.alerts_sent))
        .chain(alerts("tls alerts received", &self.alerts_received))
    }
}

/// Returns the name of an alert (RFC 8446 §6).
fn alert_name(alert: u8) -> &'static str {
    match alert {
        10 => "unexpected_message",
        20 => "bad_record_mac",
        22 => "record_overflow",
        40 => "handshake_failure",
        42 => "bad_certificate",
        43 => "unsupported_certificate",
        44 => "certificate_revoked",
        45 => "certificate_expired",
        46 => "certificate_unknown",
        47 => "illegal_parameter",
        48 => "unknown_ca",
        49 => "access_denied",
        50 => "decode_error",
        51 => "decrypt_error",
        70 => "protocol_version",
        71 => "insufficient_security",
        80 => "internal_error",
        86 => "inappropriate_fallback",
        90 => "user_canceled",
        109 => "missing_extension",
        110 => "unsupported_extension",
        112 => "unrecognized_name",
        113 => "bad_certificate_status_response",
        115 => "unknown_psk_identity",
        116 => "certificate_required",
        120 => "no_application_protocol",
        _ => "other",
    }
}
