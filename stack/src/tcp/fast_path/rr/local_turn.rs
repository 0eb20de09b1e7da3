//! Service operations in the local turn of request-response mode: echo the request, or consume it and write a response.

use crate::ip::egress::Egress;
use crate::tcp::congestion::CongestionControl;
use crate::tcp::connection::{Connection, Shared};
use crate::tcp::fast_path::established::prepend_headers;
use crate::tcp::tcb::Tcb;
use crate::tcp::tcb::rr_state::Turn;
use crate::wire::ethernet::ETHERNET_HEADER;
use crate::wire::tcp::header::Control;
use linerate_bypass::{Nic, Packet};
use linerate_service::Bytes;
use linerate_service::time::Instant;

impl Tcb {
    /// Returns whether a response of `len` bytes can be sent as one segment.
    #[inline(always)]
    fn fits_one_segment(&self, len: u32) -> bool {
        let mss = u32::from(self.mss);
        // With room for another segment the congestion window is not the limit (RFC 9438 §5.8), so congestion control
        // need not be notified.
        len <= mss && len + mss <= self.cwnd && len <= self.snd_wnd
    }
}

/// Updates `link`, the Ethernet header of epoch `at`, to the current epoch. Returns `None` if the address of the next
/// hop is unknown.
#[inline(always)]
fn refresh_link<N: Nic>(
    (link, at): (&mut [u8; ETHERNET_HEADER], &mut u32),
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
    /// Updates the state after a response of `len` bytes was sent on the connection in `slot`.
    #[inline(always)]
    fn note_response_sent(&mut self, slot: u32, tcb: &mut Tcb, len: u32) {
        self.rr.local_turns -= 1;
        tcb.nxt += len;
        tcb.rcv_acked = tcb.rcv_nxt;
        tcb.retransmit_at = self.clock.earliest_rto[usize::from(tcb.rtt.consults_path())];
        self.arm_for(slot, tcb, tcb.retransmit_at);
    }
}

impl<'a, P: Packet, C: CongestionControl> Connection<'a, P, C> {
    /// Sends the response: with `HAS_RESPONSE`, the data written by the service, if the request was consumed; otherwise
    /// the request itself. Returns the length, or `None` without effect.
    #[inline(always)]
    pub(crate) fn rr_send_response<const HAS_RESPONSE: bool, N: Nic<Packet = P>>(
        &mut self,
        egress: &mut Egress<N>,
        now: Instant,
    ) -> Option<usize> {
        let is_low = self.shared.is_low();
        let tcb = &mut *self.tcb;
        let rr = self.shared.rr.of_mut(tcb)?;
        let Turn::Local(turn) = &mut rr.turn else { return None };
        let (own, other, len) = match HAS_RESPONSE {
            true => (&mut turn.response, &turn.request, tcb.unsent),
            false => (&mut turn.request, &turn.response, tcb.received),
        };
        let packet = own.as_mut()?;
        debug_assert_eq!(now, self.shared.clock.now);
        let settings = &self.shared.settings;
        if other.is_some()
            || HAS_RESPONSE && (turn.reserved > 0 || len == 0)
            || !settings.headers_in_place
            || !tcb.fits_one_segment(len)
            || !egress.has_data_room()
        {
            return None;
        }
        refresh_link((&mut rr.link, &mut rr.link_epoch), tcb, egress, now)?;
        let window = tcb.offer_full_window(is_low)?;
        let (link, timestamp_ms) = (&rr.link, self.shared.clock.timestamp_ms);
        let kept = prepend_headers(packet, tcb, len, Control::PSH, window, link, settings.offload, timestamp_ms)?;
        let frame = own.take()?;
        // Nothing is left to drop: the local turn had one packet.
        std::mem::forget(std::mem::replace(&mut rr.turn, Turn::Peer(kept)));
        rr.sent_at = now;
        egress.send_frame(frame);
        if HAS_RESPONSE {
            self.shared.mbufs_held.queued -= 1;
            tcb.unsent = 0;
        } else {
            tcb.received = 0;
        }
        self.shared.note_response_sent(self.slot, tcb, len);
        Some(len as usize)
    }

    /// Replaces the request by a response of `len` bytes from `write`, and sends it. The request must be of
    /// `request_len` bytes and unread. Otherwise returns `write`, and the request is unchanged.
    #[inline(always)]
    pub(crate) fn rr_respond<N: Nic<Packet = P>, W: FnOnce(&mut [u8])>(
        &mut self,
        (request_len, len): (usize, usize),
        write: W,
        egress: &mut Egress<N>,
        now: Instant,
    ) -> Result<(), W> {
        let is_low = self.shared.is_low();
        let tcb = &mut *self.tcb;
        let Some(rr) = self.shared.rr.of_mut(tcb) else { return Err(write) };
        let Turn::Local(turn) = &mut rr.turn else { return Err(write) };
        let (Some(packet), None) = (&mut turn.request, &turn.response) else { return Err(write) };
        debug_assert_eq!(now, self.shared.clock.now);
        let settings = &self.shared.settings;
        let size = u32::try_from(len).unwrap_or(u32::MAX);
        if request_len < tcb.received as usize
            || len == 0
            || !settings.headers_in_place
            || !tcb.fits_one_segment(size)
            || !egress.has_data_room()
            || refresh_link((&mut rr.link, &mut rr.link_epoch), tcb, egress, now).is_none()
        {
            return Err(write);
        }
        let Some(window) = tcb.offer_full_window(is_low) else { return Err(write) };
        let Some(payload) = packet.rewrite(len) else { return Err(write) };
        // From here on the request is consumed.
        tcb.received = 0;
        write(payload);
        let (link, timestamp_ms) = (&rr.link, self.shared.clock.timestamp_ms);
        let Some(kept) = prepend_headers(packet, tcb, size, Control::PSH, window, link, settings.offload, timestamp_ms)
        else {
            // The flush sends it.
            turn.response = turn.request.take();
            self.shared.mbufs_held.queued += 1;
            tcb.unsent = size;
            return Ok(());
        };
        let frame = turn.request.take();
        // Nothing is left to drop: the local turn had one packet.
        std::mem::forget(std::mem::replace(&mut rr.turn, Turn::Peer(kept)));
        rr.sent_at = now;
        if let Some(frame) = frame {
            egress.send_frame(frame);
        }
        self.shared.note_response_sent(self.slot, tcb, size);
        Ok(())
    }

    /// Makes the request the response while the transmit queue has no room: [`rr_awaits_room`](Self::rr_awaits_room) is
    /// true afterwards. Returns the length, or `None` without effect.
    pub(crate) fn rr_echo_later<N: Nic<Packet = P>>(&mut self, egress: &Egress<N>) -> Option<usize> {
        let tcb = &mut *self.tcb;
        let Turn::Local(turn) = &mut self.shared.rr.of_mut(tcb)?.turn else { return None };
        if egress.has_data_room() || turn.response.is_some() {
            return None;
        }
        turn.response = Some(turn.request.take()?);
        self.shared.mbufs_held.queued += 1;
        tcb.unsent = std::mem::take(&mut tcb.received);
        Some(tcb.unsent as usize)
    }

    /// Returns whether the response is complete and waits for room in the transmit queue.
    #[inline]
    pub(crate) fn rr_awaits_room<N: Nic<Packet = P>>(&self, egress: &Egress<N>) -> bool {
        let Some(Turn::Local(turn)) = self.shared.rr.of(self.tcb).map(|rr| &rr.turn) else { return false };
        !egress.has_data_room() && turn.request.is_none() && turn.reserved == 0 && self.tcb.unsent > 0
    }

    /// Drops the first `n` bytes of the request. Returns whether the connection is in request-response mode.
    #[inline(always)]
    pub(crate) fn rr_consume(&mut self, n: usize) -> bool {
        let tcb = &mut *self.tcb;
        let Some(rr) = self.shared.rr.of_mut(tcb) else { return false };
        let Turn::Local(turn) = &mut rr.turn else { return true };
        if n >= tcb.received as usize {
            let Some(mut packet) = turn.request.take() else { return true };
            tcb.received = 0;
            // The consumed packet is in the cache; the response may be written into it.
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

    /// Takes the request if it has at most `max` bytes; the inner option is `None` if there is no request. Returns
    /// `None` if the general path has to take received bytes.
    #[inline(always)]
    pub(crate) fn rr_take(&mut self, max: usize) -> Option<Option<Bytes>> {
        let tcb = &mut *self.tcb;
        let Turn::Local(turn) = &mut self.shared.rr.of_mut(tcb)?.turn else { return Some(None) };
        let Some(packet) = turn.request.take_if(|packet| packet.len() <= max) else {
            return turn.request.is_none().then_some(None);
        };
        tcb.received = 0;
        self.shared.mbufs_held.all -= 1;
        let len = packet.len();
        Some(Some(packet.into_bytes(0..len)))
    }

    /// Reserves up to `max` bytes at the end of the response. Returns the number reserved: zero outside the local turn,
    /// or if the response does not fit into one segment or packet.
    #[inline(always)]
    pub(crate) fn rr_reserve<N: Nic<Packet = P>>(&mut self, max: usize, egress: &mut Egress<N>) -> usize {
        let tcb = &mut *self.tcb;
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
            // Under memory pressure the response becomes the send queue of a demoted connection at the end of the turn.
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

    /// Returns the last `n` bytes of the response.
    #[inline(always)]
    pub(crate) fn rr_reserved_mut(self, n: usize) -> Option<&'a mut [u8]> {
        let Turn::Local(turn) = &mut self.shared.rr.of_mut(self.tcb)?.turn else { return None };
        let data = turn.response.as_mut()?.data_mut()?;
        let at = data.len().checked_sub(n)?;
        data.get_mut(at..)
    }

    /// Commits the first `n` reserved bytes of the response. Returns whether a response exists.
    ///
    /// # Panics
    ///
    /// If `n` exceeds the number of reserved bytes.
    #[inline(always)]
    pub(crate) fn rr_commit(&mut self, n: usize) -> bool {
        let tcb = &mut *self.tcb;
        let Some(rr) = self.shared.rr.of_mut(tcb) else { return false };
        let Turn::Local(turn) = &mut rr.turn else { return false };
        let Some(packet) = &mut turn.response else { return false };
        let reserved = std::mem::take(&mut turn.reserved) as usize;
        assert!(n <= reserved, "{n} bytes committed of {reserved} reserved");
        if n < reserved {
            // The response is in a single mbuf segment.
            let _ = packet.trim(reserved - n);
        }
        tcb.unsent += n as u32;
        true
    }
}
