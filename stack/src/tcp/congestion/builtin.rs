//! Selection of an algorithm at run time.

use super::{CongestionControl, CongestionSignal, Cubic, Dctcp, Delivery, NewReno};
use crate::config::{Algorithm, Config};
use linerate_service::time::{Duration, Instant};

/// Algorithm that [`Config::congestion`] selects.
#[derive(Debug, Clone, Copy)]
pub enum Builtin {
    /// [`Algorithm::Cubic`].
    Cubic(Cubic),
    /// [`Algorithm::NewReno`].
    NewReno(NewReno),
    /// [`Algorithm::Dctcp`].
    Dctcp(Dctcp),
}

// Stored per connection, so the size matters.
const _: () = assert!(size_of::<Builtin>() <= 52);

macro_rules! each {
    ($self:expr, $algorithm:ident => $call:expr) => {
        match $self {
            Builtin::Cubic($algorithm) => $call,
            Builtin::NewReno($algorithm) => $call,
            Builtin::Dctcp($algorithm) => $call,
        }
    };
}

impl CongestionControl for Builtin {
    fn new(config: &Config, mss: u32) -> Self {
        match config.congestion {
            Algorithm::Cubic => Builtin::Cubic(Cubic::new(config, mss)),
            Algorithm::NewReno => Builtin::NewReno(NewReno::new(config, mss)),
            Algorithm::Dctcp => Builtin::Dctcp(Dctcp::new(config, mss)),
        }
    }

    fn window(&self) -> u32 {
        each!(self, it => it.window())
    }

    fn slow_start_threshold(&self) -> u32 {
        each!(self, it => it.slow_start_threshold())
    }

    fn delivered(&mut self, delivery: &Delivery) {
        each!(self, it => it.delivered(delivery));
    }

    fn congested(&mut self, cause: CongestionSignal, in_flight: u32, now: Instant) {
        each!(self, it => it.congested(cause, in_flight, now));
    }

    fn recovered(&mut self, now: Instant) {
        each!(self, it => it.recovered(now));
    }

    fn timed_out(&mut self, in_flight: u32, now: Instant) {
        each!(self, it => it.timed_out(in_flight, now));
    }

    fn undo(&mut self) {
        each!(self, it => it.undo());
    }

    fn idle(&mut self, idle_for: Duration, rto: Duration) {
        each!(self, it => it.idle(idle_for, rto));
    }

    fn set_mss(&mut self, mss: u32) {
        each!(self, it => it.set_mss(mss));
    }

    fn handshake_lost(&mut self) {
        each!(self, it => it.handshake_lost());
    }

    fn wants_ecn(&self) -> bool {
        each!(self, it => it.wants_ecn())
    }

    fn exact_ecn_echo(&self) -> bool {
        each!(self, it => it.exact_ecn_echo())
    }

    fn handles_ecn_echo(&self) -> bool {
        each!(self, it => it.handles_ecn_echo())
    }

    fn pacing_rate(&self, smoothed_rtt: Duration) -> u64 {
        each!(self, it => it.pacing_rate(smoothed_rtt))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::congestion::MAX_WINDOW;
    use proptest::prelude::*;

    #[test]
    fn algorithm_names_parse_and_other_text_is_rejected() {
        for algorithm in Algorithm::ALL {
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
        }
        assert_eq!(Algorithm::default().to_string(), "cubic");
        let error = "bbr".parse::<Algorithm>().unwrap_err().to_string();
        assert_eq!(error, "'bbr' is not a congestion control algorithm: use cubic, newreno or dctcp");
    }

    #[test]
    fn configuration_selects_the_algorithm() {
        let names = |congestion| match Builtin::new(&Config { congestion, ..Config::default() }, 1000) {
            Builtin::Cubic(_) => Algorithm::Cubic,
            Builtin::NewReno(_) => Algorithm::NewReno,
            Builtin::Dctcp(_) => Algorithm::Dctcp,
        };
        assert_eq!(Algorithm::ALL.map(names), Algorithm::ALL);
        assert!(matches!(Builtin::new(&Config::default(), 1000), Builtin::Cubic(_)));
    }

    #[test]
    fn only_dctcp_requires_ecn() {
        for congestion in Algorithm::ALL {
            let control = Builtin::new(&Config { congestion, ..Config::default() }, 1000);
            let capabilities = [control.wants_ecn(), control.exact_ecn_echo(), control.handles_ecn_echo()];
            assert_eq!(capabilities, [congestion == Algorithm::Dctcp; 3]);
        }
    }

    #[derive(Debug, Clone)]
    enum Call {
        Delivered(Delivery, Duration),
        Congested(CongestionSignal, u32),
        Recovered,
        TimedOut(u32),
        Undo,
        Idle(Duration, Duration),
        SetMss(u32),
        HandshakeLost,
    }

    /// Generates mostly small numbers, sometimes any.
    fn number() -> impl Strategy<Value = u32> {
        prop_oneof![4 => 0..100_000u32, 1 => any::<u32>()]
    }

    fn duration() -> impl Strategy<Value = Duration> {
        let nanos = prop_oneof![
            8 => 0..1_000_000_000u64,
            1 => 0..100_000_000_000_000u64,
            1 => any::<u64>(),
        ];
        prop_oneof![20 => nanos.prop_map(Duration::from_nanos), 1 => Just(Duration::MAX)]
    }

    prop_compose! {
        fn delivery()(
            (bytes, marked, in_flight) in (number(), prop_oneof![2 => Just(0), 1 => number()], number()),
            (window_limited, paced) in (prop::bool::weighted(0.8), any::<bool>()),
            (rtt, smoothed_rtt) in (prop::option::of(duration()), duration()),
            (acknowledged, next) in (number(), number()),
            passed in duration(),
        ) -> Call {
            let now = Instant::ZERO;
            let delivery = Delivery {
                now, bytes, marked, in_flight, window_limited, paced, rtt, smoothed_rtt, acknowledged, next,
            };
            Call::Delivered(delivery, passed)
        }
    }

    fn calls() -> impl Strategy<Value = Vec<Call>> {
        let call = prop_oneof![
            20 => delivery(),
            2 => (prop_oneof![Just(CongestionSignal::Loss), Just(CongestionSignal::EcnEcho)], number())
                .prop_map(|(cause, in_flight)| Call::Congested(cause, in_flight)),
            2 => Just(Call::Recovered),
            1 => number().prop_map(Call::TimedOut),
            1 => Just(Call::Undo),
            1 => (duration(), duration()).prop_map(|(idle_for, rto)| Call::Idle(idle_for, rto)),
            1 => prop_oneof![3 => 1..10_000u32, 1 => any::<u32>()].prop_map(Call::SetMss),
            1 => Just(Call::HandshakeLost),
        ];
        prop::collection::vec(call, 1..200)
    }

    proptest! {
        #[test]
        fn no_sequence_of_calls_panics_or_takes_the_window_out_of_its_bounds(
            algorithm in 0..3usize,
            mss in number(),
            calls in calls(),
        ) {
            let config = Config { congestion: Algorithm::ALL[algorithm], ..Config::default() };
            let mut control = Builtin::new(&config, mss);
            // As in real segments: not empty, and at most an IP packet.
            let mut mss = mss.clamp(1, 65_535);
            let mut now = Instant::ZERO;
            let mut one_segment = false;
            for call in calls {
                let before = (control.window(), control.slow_start_threshold());
                match call.clone() {
                    Call::Delivered(delivery, passed) => {
                        now += passed;
                        control.delivered(&Delivery { now, ..delivery });
                        if control.window() < before.0 {
                            prop_assert!(delivery.marked > 0, "a delivery reduced {:?}", control);
                        }
                    }
                    Call::Congested(cause, in_flight) => {
                        control.congested(cause, in_flight, now);
                        prop_assert_eq!(control.window(), before.0);
                        prop_assert!(control.slow_start_threshold() <= before.1.max(2 * mss) || before.0 > before.1);
                    }
                    Call::Recovered => control.recovered(now),
                    Call::TimedOut(in_flight) => {
                        control.timed_out(in_flight, now);
                        one_segment = true;
                        prop_assert_eq!(control.window(), mss);
                    }
                    Call::Undo => {
                        control.undo();
                        prop_assert!(control.window() >= before.0 && control.slow_start_threshold() >= before.1);
                    }
                    Call::Idle(idle_for, rto) => control.idle(idle_for, rto),
                    Call::SetMss(new) => {
                        control.set_mss(new);
                        mss = new.clamp(1, 65_535);
                    }
                    Call::HandshakeLost => {
                        control.handshake_lost();
                        one_segment = true;
                    }
                }
                let (window, threshold) = (control.window(), control.slow_start_threshold());
                prop_assert!((mss..=MAX_WINDOW).contains(&window), "{:?} after {:?}", control, call);
                prop_assert!(threshold >= 2 * mss, "{:?} after {:?}", control, call);
                one_segment &= window < 2 * mss;
                prop_assert!(one_segment || window >= 2 * mss, "{:?} after {:?}", control, call);
                control.pacing_rate(Duration::from_nanos(now.as_nanos()));
            }
        }
    }
}
