//! What services do in their turn: send back what was received, or consume it and write something else.

use super::{LocalTurn, Turn};
use crate::congestion::CongestionControl;
use crate::egress::{ETHERNET, Egress};
use crate::native::NativeEngine;
use crate::native::connection::Shared;
use crate::native::fast_path::established::prepend_headers;
use crate::native::segment::header::Control;
use crate::native::tcb::Tcb;
use linerate_bypass::time::Instant;
use linerate_bypass::{Nic, Packet};

impl Tcb {
    /// Whether an answer of `len` bytes may go out as one segment.
    #[inline(always)]
    fn fits_one_segment(&self, len: u32) -> bool {
        let mss = u32::from(self.mss);
        // With room for another segment the congestion window is not what limits it (RFC 9438 §5.8), and need not be told.
        len <= mss && len + mss <= self.cwnd && len <= self.snd_wnd
    }
}

/// Makes `link` right for now, which was right `at` that time, if it is known how to reach the peer of `tcb`.
#[inline(always)]
fn refresh_link<N: Nic>(
    (link, at): (&mut [u8; ETHERNET], &mut u32),
    tcb: &Tcb,
    egress: &mut Egress<N>,
    now: Instant,
) -> Option<()> {
    if *at != egress.link_epoch() {
        *link = *egress.link_header(tcb.tuple.remote_v6().to_bits(), now)?;
        *at = egress.link_epoch();
    }
    Some(())
}

impl<P> Shared<P> {
    /// The connection of `tcb`, in `slot`, has answered the peer's turn by `len` bytes.
    #[inline(always)]
    fn note_response_sent(&mut self, slot: u32, tcb: &mut Tcb, len: u32) {
        self.rr.local_turns -= 1;
        tcb.nxt += len;
        tcb.rcv_acked = tcb.rcv_nxt;
        tcb.retransmit_at = self.earliest_rto[usize::from(tcb.rtt.consults_path())];
        self.arm_for(slot, tcb, tcb.retransmit_at);
    }
}

impl<P: Packet, C: CongestionControl> NativeEngine<P, C> {
    /// Answers the peer's turn of the connection in `slot`: with what the service has written, `HAS_RESPONSE`, if it has consumed all
    /// that was received; otherwise with what was received. Returns how many bytes that were; `None` when nothing has changed.
    #[inline(always)]
    pub(crate) fn rr_respond<const HAS_RESPONSE: bool, N: Nic<Packet = P>>(
        &mut self,
        slot: u32,
        egress: &mut Egress<N>,
        now: Instant,
    ) -> Option<usize> {
        let is_low = self.shared.is_low();
        let tcb = self.tcbs.get_mut(slot as usize)?;
        let rr = self.shared.rr.of_mut(tcb)?;
        let Turn::Local(turn) = &mut rr.turn else { return None };
        let (packet, other, len) = match HAS_RESPONSE {
            true => (&mut turn.response, &turn.request, tcb.unsent),
            false => (&mut turn.request, &turn.response, tcb.received),
        };
        let packet = packet.as_mut()?;
        // The segment came in this turn of the worker, or the exchange would have been settled.
        debug_assert_eq!(now, self.shared.now);
        let settings = &self.shared.settings;
        if other.is_some()
            || HAS_RESPONSE && (turn.reserved > 0 || len == 0)
            || !settings.headers_only
            || !tcb.fits_one_segment(len)
            || egress.room() == 0
        {
            return None;
        }
        refresh_link((&mut rr.link, &mut rr.link_epoch), tcb, egress, now)?;
        let window = tcb.offer_full_window(is_low)?;
        let (link, milliseconds) = (&rr.link, self.shared.milliseconds);
        let kept = prepend_headers(packet, tcb, len, Control::PSH, window, link, settings.offload, milliseconds)?;
        let Turn::Local(LocalTurn { request, response, .. }) = std::mem::replace(&mut rr.turn, Turn::Peer(kept)) else {
            return None;
        };
        rr.sent_at = now;
        egress.send_frame(if HAS_RESPONSE { response? } else { request? });
        if HAS_RESPONSE {
            self.shared.mbufs_held.queued -= 1;
            tcb.unsent = 0;
        } else {
            tcb.received = 0;
        }
        self.shared.note_response_sent(slot, tcb, len);
        Some(len as usize)
    }

    /// Answers the peer's turn of the connection in `slot`, if the first `request` bytes are all that was received, with `len`
    /// bytes, which `write` writes where the request was. Otherwise it gives `write` back, and the request is still there.
    #[inline(always)]
    pub(crate) fn rr_respond_in_place<N: Nic<Packet = P>, W: FnOnce(&mut [u8])>(
        &mut self,
        slot: u32,
        (request_len, len): (usize, usize),
        write: W,
        egress: &mut Egress<N>,
        now: Instant,
    ) -> Result<(), W> {
        let is_low = self.shared.is_low();
        let Some(tcb) = self.tcbs.get_mut(slot as usize) else { return Err(write) };
        let Some(rr) = self.shared.rr.of_mut(tcb) else { return Err(write) };
        let Turn::Local(turn) = &mut rr.turn else { return Err(write) };
        let (Some(packet), None) = (&mut turn.request, &turn.response) else { return Err(write) };
        debug_assert_eq!(now, self.shared.now);
        let settings = &self.shared.settings;
        let size = u32::try_from(len).unwrap_or(u32::MAX);
        if request_len < tcb.received as usize
            || len == 0
            || !settings.headers_only
            || !tcb.fits_one_segment(size)
            || egress.room() == 0
            || refresh_link((&mut rr.link, &mut rr.link_epoch), tcb, egress, now).is_none()
        {
            return Err(write);
        }
        let Some(window) = tcb.offer_full_window(is_low) else { return Err(write) };
        let Some(place) = packet.rewrite(len) else { return Err(write) };
        // From here on the request is consumed.
        tcb.received = 0;
        write(place);
        let (link, milliseconds) = (&rr.link, self.shared.milliseconds);
        let Some(kept) = prepend_headers(packet, tcb, size, Control::PSH, window, link, settings.offload, milliseconds)
        else {
            // It goes at the end of the turn.
            turn.response = turn.request.take();
            self.shared.mbufs_held.queued += 1;
            tcb.unsent = size;
            return Ok(());
        };
        if let Turn::Local(LocalTurn { request: Some(answer), .. }) = std::mem::replace(&mut rr.turn, Turn::Peer(kept))
        {
            egress.send_frame(answer);
        }
        rr.sent_at = now;
        self.shared.note_response_sent(slot, tcb, size);
        Ok(())
    }

    /// Drops the first `n` bytes received in the exchange of the connection in `slot`, or all. Returns whether it has one.
    #[inline(always)]
    pub(crate) fn rr_consume(&mut self, slot: u32, n: usize) -> bool {
        let Some(tcb) = self.tcbs.get_mut(slot as usize) else { return false };
        let Some(rr) = self.shared.rr.of_mut(tcb) else { return false };
        let Turn::Local(turn) = &mut rr.turn else { return true };
        if n >= tcb.received as usize {
            let Some(mut packet) = turn.request.take() else { return true };
            tcb.received = 0;
            // Nobody reads it any more, and it is near: the answer may be written there.
            if turn.response.is_none() && packet.trim(packet.len()) {
                turn.response = Some(packet);
                self.shared.mbufs_held.queued += 1;
            } else {
                self.shared.mbufs_held.all -= 1;
            }
        } else if let Some(packet) = &mut turn.request
            && packet.adjust(n)
        {
            tcb.received -= n as u32;
        }
        true
    }

    /// Makes a place of up to `max` bytes at the end of the answer that is written in the exchange of the connection in `slot`.
    /// Returns how many it has: none if there is no exchange, if it is not our turn, or if it is not as simple as that.
    #[inline(always)]
    pub(crate) fn rr_reserve<N: Nic<Packet = P>>(&mut self, slot: u32, max: usize, egress: &mut Egress<N>) -> usize {
        let Some(tcb) = self.tcbs.get_mut(slot as usize) else { return 0 };
        let Some(rr) = self.shared.rr.of_mut(tcb) else { return 0 };
        let Turn::Local(turn) = &mut rr.turn else { return 0 };
        let n = max.min(usize::from(tcb.mss).saturating_sub(tcb.unsent as usize));
        if n == 0 || turn.reserved > 0 {
            return 0;
        }
        if let Some(packet) = &mut turn.response {
            if packet.append(n).is_none() {
                return 0;
            }
        } else {
            // Where packets run low, what is written in this turn becomes the queue of an ordinary connection at its end.
            let Some(mut packet) = egress.allocate_for_payload() else { return 0 };
            if packet.append(n).is_none() {
                return 0;
            }
            turn.response = Some(packet);
            self.shared.mbufs_held.queue(1);
        }
        turn.reserved = n as u32;
        n
    }

    /// The last `n` bytes of the answer that is written in the exchange of the connection in `slot`.
    #[inline(always)]
    pub(crate) fn rr_reserved_mut(&mut self, slot: u32, n: usize) -> Option<&mut [u8]> {
        let tcb = self.tcbs.get(slot as usize)?;
        let Turn::Local(turn) = &mut self.shared.rr.of_mut(tcb)?.turn else { return None };
        let data = turn.response.as_mut()?.data_mut()?;
        let at = data.len().checked_sub(n)?;
        data.get_mut(at..)
    }

    /// The first `n` bytes that were reserved at the end of the answer in the exchange of the connection in `slot` are written.
    /// Returns whether there is such an answer.
    ///
    /// # Panics
    ///
    /// If that is more than was reserved.
    #[inline(always)]
    pub(crate) fn rr_commit(&mut self, slot: u32, n: usize) -> bool {
        let Some(tcb) = self.tcbs.get_mut(slot as usize) else { return false };
        let Some(rr) = self.shared.rr.of_mut(tcb) else { return false };
        let Turn::Local(turn) = &mut rr.turn else { return false };
        let Some(packet) = &mut turn.response else { return false };
        let reserved = std::mem::take(&mut turn.reserved) as usize;
        assert!(n <= reserved, "{n} bytes committed of a place of {reserved}");
        if n < reserved {
            // Within the packet's one segment.
            let _ = packet.trim(reserved - n);
        }
        tcb.unsent += n as u32;
        true
    }
}
