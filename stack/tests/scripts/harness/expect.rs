//! Expectations of a script: segments on the wire, and events of the service.

use super::app::AppEvent;
use super::flow::Got;
use super::params::{ms, tolerance};
use super::script::Script;
use super::segment::{Rel, SEG, Seg, Want, data};
use super::trace::{describe, describe_got};
use super::wire::{ACK, FIN, RST, SYN};
use linerate_service::time::{Duration, Instant};
use linerate_service::{CloseReason, ConnectError};

impl Script {
    /// Expects the worker to have sent `want` next. No time passes.
    #[track_caller]
    pub fn expect(&mut self, want: Seg) -> Got {
        self.run_until_idle();
        match self.pending.pop_front() {
            Some(got) => self.compare(&want, got),
            None => self.fail(&format!("expected: {}\nbut the worker sent nothing", describe(&want))),
        }
    }

    /// Expects `want` next after `time`, within the tolerance of timers.
    #[track_caller]
    pub fn expect_after(&mut self, time: Duration, want: Seg) -> Got {
        let slack = tolerance(time);
        self.expect_between(time.saturating_sub(slack), time + slack, want)
    }

    /// Expects `want` next within `time`.
    #[track_caller]
    pub fn expect_within(&mut self, time: Duration, want: Seg) -> Got {
        self.expect_between(Duration::ZERO, time + tolerance(time), want)
    }

    /// Expects `want` next, at least `from` and at most `to` from now.
    #[track_caller]
    pub fn expect_between(&mut self, from: Duration, to: Duration, want: Seg) -> Got {
        let began = self.now();
        self.run_until(began + to, |script| !script.pending.is_empty());
        let Some(got) = self.pending.pop_front() else {
            self.fail(&format!("expected within {to:?}: {}\nbut the worker sent nothing", describe(&want)));
        };
        let after = got.at.since(began);
        if after < from {
            let (want, got) = (describe(&want), describe_got(&got));
            self.fail(&format!("expected not before {from:?}: {want}\nbut after {after:?}: {got}"));
        }
        self.compare(&want, got)
    }

    /// Expects that the worker has sent nothing. No time passes.
    #[track_caller]
    pub fn expect_nothing(&mut self) {
        self.run_until_idle();
        if let Some(got) = self.pending.pop_front() {
            self.fail(&format!("expected nothing, but the worker sent: {}", describe_got(&got)));
        }
    }

    /// Expects the worker to send nothing for `time`.
    #[track_caller]
    pub fn expect_nothing_for(&mut self, time: Duration) {
        self.run_until(self.now() + time, |script| !script.pending.is_empty());
        self.expect_nothing();
    }

    /// Expects `count` segments of [`SEG`] bytes from `from`, in order. No time passes.
    #[track_caller]
    pub fn expect_flight(&mut self, from: Rel, count: Rel) {
        for n in 0..count {
            self.expect(data(from + n * SEG, SEG));
        }
    }

    /// Expects a keepalive or window probe: the byte before `next`, which has been sent, or no data (RFC 9293 §3.8.4),
    /// or the byte at `next` (§3.8.6.1).
    #[track_caller]
    pub fn expect_probe_between(&mut self, from: Duration, to: Duration, next: Rel) -> Got {
        let began = self.now();
        self.run_until(began + to, |script| !script.pending.is_empty());
        let Some(got) = self.pending.pop_front() else {
            self.fail(&format!("expected a probe within {to:?}, but the worker sent nothing"));
        };
        let shape = (got.seq == next && got.len == 1) || (got.seq == next - 1 && got.len <= 1);
        if !shape || got.flags & (SYN | FIN | RST) != 0 || !got.has(ACK) || got.at.since(began) < from {
            self.fail(&format!(
                "expected a probe of {next} not before {from:?}, but after {:?}: {}",
                got.at.since(began),
                describe_got(&got)
            ));
        }
        got
    }

    /// Expects a probe as [`expect_probe_between`](Self::expect_probe_between) does, after `time` within the tolerance
    /// of timers.
    #[track_caller]
    pub fn expect_probe_after(&mut self, time: Duration, next: Rel) -> Got {
        let slack = tolerance(time);
        self.expect_probe_between(time.saturating_sub(slack), time + slack, next)
    }

    /// Returns the segments that the worker has sent and the script has not expected.
    pub fn drain(&mut self) -> Vec<Got> {
        self.run_until_idle();
        self.pending.drain(..).collect()
    }

    /// Lets `time` pass and returns the segments sent until then.
    #[track_caller]
    pub fn drain_for(&mut self, time: Duration) -> Vec<Got> {
        self.pass(time);
        self.drain()
    }

    /// Returns the frames without TCP that the worker has sent.
    pub fn drain_non_tcp(&mut self) -> Vec<Vec<u8>> {
        self.run_until_idle();
        std::mem::take(&mut self.non_tcp)
    }

    #[track_caller]
    fn compare(&mut self, want: &Seg, got: Got) -> Got {
        let wrong = self.differences(want, &got);
        if !wrong.is_empty() {
            let (want, got) = (describe(want), describe_got(&got));
            self.fail(&format!("expected: {want}\nbut sent: {got}\ndifferent: {}", wrong.join(", ")));
        }
        got
    }

    fn differences(&mut self, want: &Seg, got: &Got) -> Vec<String> {
        let port = want.port.unwrap_or(self.port);
        let options = &got.raw.options;
        let mut wrong = Vec::new();
        let mut differs = |name: &str, is: bool| {
            if is {
                wrong.push(name.to_owned());
            }
        };
        differs("port", got.port != port);
        differs("flags", (got.flags ^ want.flags) & !want.ignored_flags != 0);
        let seq = if want.absolute { Rel::from(got.raw.seq) } else { got.seq };
        differs("sequence number", seq != want.seq);
        differs("length", got.len != want.payload.len());
        differs("acknowledgement", want.ack.value().is_some_and(|ack| got.ack != ack));
        differs("window", want.window.is_some_and(|window| got.raw.window != window));
        differs("MSS", !matches_want(want.mss, options.mss));
        differs("window scale", !matches_want(want.window_scale, options.window_scale));
        differs("SACK-permitted", !matches_want(want.sack_permitted, options.sack_permitted.then_some(())));
        differs("timestamps", !matches_want(want.timestamp, options.timestamp));
        differs("TSecr", want.echo.is_some_and(|echo| options.timestamp.is_none_or(|(_, got)| got != echo)));
        differs("SACK blocks", !want.any_sack && got.sack != want.sack);
        differs("ECN bits", want.ecn.is_some_and(|ecn| got.raw.ecn != ecn));
        wrong
    }
}

fn matches_want<T: PartialEq>(want: Want<T>, got: Option<T>) -> bool {
    match want {
        Want::Any => true,
        Want::Absent => got.is_none(),
        Want::Is(value) => got == Some(value),
    }
}

/// Expectations of service events on the current port.
impl Script {
    #[track_caller]
    fn next_event(&mut self) -> Option<(Instant, AppEvent)> {
        self.run_until_idle();
        let mut log = self.arms[0].log.borrow_mut();
        log.conns.get_mut(&self.port).and_then(|conn| conn.events.pop_front())
    }

    #[track_caller]
    fn expect_event(&mut self, expected: &str, fits: impl FnOnce(AppEvent) -> bool) -> Instant {
        match self.next_event() {
            Some((at, event)) if fits(event) => {
                self.note(format_args!("service {event:?}"));
                at
            }
            other => self.fail(&format!("expected event: {expected}\nbut got: {:?}", other.map(|(_, event)| event))),
        }
    }

    /// Expects the connection to be established.
    #[track_caller]
    pub fn expect_opened(&mut self) {
        self.expect_event("opened", |event| matches!(event, AppEvent::Opened(_)));
    }

    #[track_caller]
    pub fn expect_failed(&mut self, error: ConnectError) {
        self.expect_event(&format!("{error:?}"), |event| event == AppEvent::Failed(error));
    }

    /// Expects the timer of the connection to expire.
    #[track_caller]
    pub fn expect_timer(&mut self) -> Instant {
        self.expect_event("timer", |event| event == AppEvent::Timer)
    }

    /// Expects `writable` after [`Command::Oversend`](super::Command::Oversend).
    #[track_caller]
    pub fn expect_writable(&mut self) {
        self.expect_event("writable", |event| event == AppEvent::Writable);
    }

    /// Expects the end of the peer's stream.
    #[track_caller]
    pub fn expect_peer_closed(&mut self) {
        self.expect_event("peer closed", |event| event == AppEvent::PeerClosed);
    }

    #[track_caller]
    pub fn expect_closed(&mut self, reason: CloseReason) {
        self.expect_event(&format!("closed: {reason:?}"), |event| event == AppEvent::Closed(reason));
    }

    #[track_caller]
    pub fn expect_closed_for_any_reason(&mut self) {
        self.expect_event("closed", |event| matches!(event, AppEvent::Closed(_)));
    }

    /// Returns true if the next event is the establishment of the connection, and removes that event.
    pub fn has_opened(&mut self) -> bool {
        matches!(self.next_event(), Some((_, AppEvent::Opened(_))))
    }

    /// Expects no further event.
    #[track_caller]
    pub fn expect_no_event(&mut self) {
        if let Some((_, event)) = self.next_event() {
            self.fail(&format!("expected no event, but got: {event:?}"));
        }
    }

    /// Expects that `bytes` have been delivered to the service since the connection was established.
    #[track_caller]
    pub fn expect_delivered(&mut self, bytes: Rel) {
        self.run_until_idle();
        let delivered = self.arms[0].log.borrow().conns.get(&self.port).map_or(0, |conn| conn.delivered);
        if delivered != bytes {
            self.fail(&format!("expected {bytes} bytes delivered to the service, but {delivered} were"));
        }
    }

    /// Expects the connection to carry data both ways: byte `seq` of the peer is delivered, and byte `next` of the
    /// worker is sent.
    #[track_caller]
    pub fn expect_alive(&mut self, seq: Rel, next: Rel) {
        self.expect_nothing();
        self.expect_no_event();
        self.inject(data(seq, 1).ack(next));
        self.write(1);
        self.expect_delivered(seq);
        let got = self.pending.iter().find(|got| got.len == 1 && got.seq == next && got.ack == seq + 1).cloned();
        if got.is_none() {
            self.fail(&format!("expected byte {next} and an acknowledgement of {}", seq + 1));
        }
        self.pending.clear();
        self.inject(super::segment::ack(seq + 1, next + 1));
        self.expect_nothing_for(ms(1));
    }
}
