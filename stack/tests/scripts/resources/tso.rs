//! Ports that cut segments (TSO): the engine hands over packets larger than the MSS.

use super::harness::*;
use linerate_bypass::memory_nic::LinkConfig;

/// Link whose ports cut up to `most` bytes of payload.
fn link(most: usize) -> LinkConfig {
    LinkConfig { checksum_offload: true, tso: Some(most), pool: 1024, ..LinkConfig::default() }
}

/// Peers over both families, without and with timestamps.
fn peers() -> [Peer; 4] {
    [peer(), peer().timestamps(), peer().ipv6(), peer().timestamps().ipv6()]
}

/// Lengths of the packets that the worker has sent, and whether the port cuts each.
#[track_caller]
fn lengths(s: &mut Script) -> Vec<(Rel, bool)> {
    s.drain().iter().map(|got| (got.len, got.raw.tso)).collect()
}

#[test]
fn port_cuts_a_write_of_several_segments() {
    native_only!();
    for peer in peers() {
        let mut s = Script::accepted_over(peer, link(65_000));
        s.write(5 * SEG + 1);
        assert_eq!(lengths(&mut s), [(5 * SEG + 1, true)]);
        s.inject(ack(1, 5 * SEG + 2));
        s.expect_nothing();
        s.expect_all_packets_back();
    }
}

#[test]
fn port_cuts_a_slice_of_the_service() {
    native_only!();
    for peer in peers() {
        let mut s = Script::accepted_over(peer, link(65_000));
        s.send(5 * SEG);
        assert_eq!(lengths(&mut s), [(5 * SEG, true)]);
    }
}

#[test]
fn port_does_not_cut_what_fits_into_a_segment() {
    native_only!();
    for peer in peers() {
        let mut s = Script::accepted_over(peer, link(65_000));
        s.write(SEG);
        assert_eq!(lengths(&mut s), [(SEG, false)]);
        s.write(1);
        assert_eq!(lengths(&mut s), [(1, false)]);
        // One byte more than a segment.
        s.inject(ack(1, SEG + 2));
        s.write(SEG + 1);
        assert_eq!(lengths(&mut s), [(SEG + 1, true)]);
    }
}

#[test]
fn port_gets_no_more_payload_than_it_cuts() {
    // Full segments, so that only the last packet has a short one.
    native_only!();
    for peer in peers() {
        let mut s = Script::accepted_over(peer, link(3 * SEG as usize + 500));
        s.write(7 * SEG + 100);
        assert_eq!(lengths(&mut s), [(3 * SEG, true), (3 * SEG, true), (SEG + 100, true)]);
        s.inject(ack(1, 7 * SEG + 101));
        // The most that the port cuts, exactly.
        s.write(3 * SEG + 500);
        assert_eq!(lengths(&mut s), [(3 * SEG + 500, true)]);
    }
}

#[test]
fn congestion_window_bounds_a_packet_that_the_port_cuts() {
    // RFC 5681 §3.1: the port cuts within the window.
    native_only!();
    for peer in peers() {
        let mut s = Script::accepted_over(peer, link(65_000));
        s.write(20 * SEG);
        assert_eq!(lengths(&mut s), [(INITIAL_WINDOW * SEG, true)]);
    }
}

#[test]
fn window_of_the_peer_bounds_a_packet_that_the_port_cuts() {
    // RFC 9293 §3.8.6: not a byte beyond the window; full segments as long as more is to come.
    native_only!();
    for peer in peers() {
        let mut s = Script::accepted_over(peer.window(3500), link(65_000));
        s.write(5 * SEG);
        assert_eq!(lengths(&mut s), [(3 * SEG, true)]);
    }
}

#[test]
fn echo_of_several_segments_is_cut_by_the_port() {
    native_only!();
    for peer in peers() {
        let mut s = Script::accepted_over(peer, link(65_000));
        s.echo();
        s.inject_burst((0..4).map(|n| data(1 + n * SEG, SEG)));
        assert_eq!(lengths(&mut s), [(4 * SEG, true)]);
    }
}

#[test]
fn lost_segment_of_a_cut_packet_is_sent_again_alone() {
    // RFC 6675 §5: only what the blocks leave out.
    native_only!();
    for peer in peers() {
        let mut s = Script::accepted_over(peer.sack().rtt(ms(10)), link(65_000));
        s.write(10 * SEG);
        assert_eq!(lengths(&mut s), [(10 * SEG, true)]);
        s.pass(ms(10));
        s.inject(ack(1, 2 * SEG + 1));
        s.inject(ack(1, 2 * SEG + 1).sack(&[(3 * SEG + 1, 10 * SEG + 1)]));
        s.expect_within(ms(10), data(2 * SEG + 1, SEG));
        s.expect_nothing();
    }
}

#[test]
fn probe_of_a_cut_packet_is_its_last_segment() {
    // RFC 8985 §7.3: the segment with the highest sequence number.
    native_only!();
    for (len, last) in [(3 * SEG, SEG), (3 * SEG - 1, SEG - 1), (2 * SEG + 1, 1)] {
        for peer in peers() {
            let mut s = Script::accepted_over(peer.sack().rtt(ms(10)), link(65_000));
            s.write(len);
            assert_eq!(lengths(&mut s), [(len, true)]);
            s.expect_within(ms(100), data(1 + len - last, last));
        }
    }
}
