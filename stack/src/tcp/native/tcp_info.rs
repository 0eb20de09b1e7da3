//! Introspection of a connection, derived from the engine's state.

use crate::tcp::NativeEngine;
use crate::tcp::congestion::CongestionControl;
use crate::tcp::recovery::Phase;
use crate::tcp::tcb::{Flags, State, Tcb};
use linerate_bypass::Packet;
use linerate_service::inspect::{ConnInfo, ConnState, TcpInfo};

impl From<State> for ConnState {
    fn from(state: State) -> ConnState {
        match state {
            State::Closed => ConnState::Closed,
            State::SynSent => ConnState::SynSent,
            State::SynReceived => ConnState::SynReceived,
            State::Established => ConnState::Established,
            State::FinWait1 => ConnState::FinWait1,
            State::FinWait2 => ConnState::FinWait2,
            State::CloseWait => ConnState::CloseWait,
            State::Closing => ConnState::Closing,
            State::LastAck => ConnState::LastAck,
            State::TimeWait => ConnState::TimeWait,
        }
    }
}

impl<P: Packet, C: CongestionControl> NativeEngine<P, C> {
    /// Returns a description of the connection in `slot`, if there is one.
    pub(crate) fn conn_info(&self, slot: usize) -> Option<ConnInfo> {
        let tcb = self.tcbs.get(slot)?;
        if tcb.flags.has(Flags::VACANT) {
            return None;
        }
        Some(ConnInfo {
            conn: self.shared.id(slot as u32, tcb),
            local: Some(tcb.tuple.local()),
            remote: tcb.tuple.remote(),
            state: tcb.state.into(),
            unread: tcb.received.into(),
            unsent: tcb.unsent.into(),
            tcp: self.tcp_info(slot, tcb),
            verbs: None,
            tls: None,
        })
    }

    fn tcp_info(&self, slot: usize, tcb: &Tcb) -> TcpInfo {
        let (cold, settings) = (&self.cold[slot], &self.shared.settings);
        let (control, path, rtt) = (&cold.control, &cold.path, &tcb.rtt);
        let flight = self.shared.buffers.of(tcb).map(|buffers| &buffers.flight);
        let threshold = control.slow_start_threshold();
        TcpInfo {
            mss: Some(tcb.mss),
            in_flight: Some(tcb.outstanding().into()),
            send_window: Some(tcb.snd_wnd.into()),
            receive_window: Some(tcb.rcv_window().into()),
            congestion_window: Some(control.window().into()),
            slow_start_threshold: (threshold < crate::tcp::congestion::MAX_WINDOW).then(|| threshold.into()),
            rtt: rtt.has_sample().then(|| rtt.smoothed()),
            rtt_variation: rtt.has_sample().then(|| rtt.variation()),
            min_rtt: path.min_rtt(),
            rto: Some(path.rto(rtt, &settings.limits)),
            time_outs: Some(flight.map_or(0, |flight| flight.timeouts().into())),
            retransmitted: Some(cold.retransmitted.into()),
            is_recovering: Some(flight.is_some_and(|flight| matches!(flight.phase(), Phase::Recovery | Phase::Loss))),
            reorders: Some(path.reordering_seen()),
            pacing_rate: (settings.pacing && rtt.has_sample()).then(|| control.pacing_rate(rtt.smoothed())),
        }
    }
}
