//! TCP segmentation offload (TSO): the engine passes packets larger than the MSS to the port.

use crate::harness::*;
use linerate_bypass::memory_nic::LinkConfig;

/// Returns a link whose ports segment up to `most` bytes of payload.
fn link(most: usize) -> LinkConfig {
    LinkConfig { checksum_offload: true, tso: Some(most), pool: 1024, ..LinkConfig::default() }
}

/// Returns peers of both families, with and without timestamps.
fn peers() -> [Peer; 4] {
    [peer(), peer().timestamps(), peer().ipv6(), peer().timestamps().ipv6()]
}

/// Returns the payload lengths of the sent packets, and whether the port segments each.
#[track_caller]
fn lengths(s: &mut Script) -> Vec<(Rel, bool)> {
    s.drain().iter().map(|got| (got.len, got.raw.tso)).collect()
}

#[test]
fn tso_segments_write() {
    for peer in peers() {
        let mut s = Script::accepted_over(peer, link(65_000));
        s.write(5 * SEG + 1);
        assert_eq!(lengths(&mut s), [(5 * SEG + 1, true)]);
        s.inject(ack(1, 5 * SEG + 2)).expect_nothing();
        s.expect_no_packets_held();
    }
}

#[test]
fn tso_segments_owned_slice() {
    for peer in peers() {
        let mut s = Script::accepted_over(peer, link(65_000));
        s.send(5 * SEG);
        assert_eq!(lengths(&mut s), [(5 * SEG, true)]);
    }
}

#[test]
fn tso_is_not_used_for_single_segment() {
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
fn tso_payload_is_bounded_by_port() {
    // Full segments, so that only the last packet has a short one.
    for peer in peers() {
        let mut s = Script::accepted_over(peer, link(3 * SEG as usize + 500));
        s.write(7 * SEG + 100);
        assert_eq!(lengths(&mut s), [(3 * SEG, true), (3 * SEG, true), (SEG + 100, true)]);
        s.inject(ack(1, 7 * SEG + 101));
        // Exactly the maximum of the port.
        s.write(3 * SEG + 500);
        assert_eq!(lengths(&mut s), [(3 * SEG + 500, true)]);
    }
}

#[test]
fn tso_payload_is_bounded_by_cwnd() {
    // RFC 5681 §3.1.
    for peer in peers() {
        let mut s = Script::accepted_over(peer, link(65_000));
        s.write(20 * SEG);
        assert_eq!(lengths(&mut s), [(INITIAL_WINDOW * SEG, true)]);
    }
}

#[test]
fn tso_payload_is_bounded_by_receive_window() {
    // RFC 9293 §3.8.6: up to the right edge, in full segments while more data follows.
    for peer in peers() {
        let mut s = Script::accepted_over(peer.window(3500), link(65_000));
        s.write(5 * SEG);
        assert_eq!(lengths(&mut s), [(3 * SEG, true)]);
    }
}

#[test]
fn tso_segments_echo() {
    for peer in peers() {
        let mut s = Script::accepted_over(peer, link(65_000));
        s.echo();
        s.inject_burst((0..4).map(|n| data(1 + n * SEG, SEG)));
        assert_eq!(lengths(&mut s), [(4 * SEG, true)]);
    }
}

#[test]
fn lost_segment_of_tso_packet_is_retransmitted_alone() {
    // RFC 6675 §5: only the gaps between SACK blocks.
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
fn tail_loss_probe_of_tso_packet_is_its_last_segment() {
    // RFC 8985 §7.3: the segment with the highest sequence number.
    for (len, last) in [(3 * SEG, SEG), (3 * SEG - 1, SEG - 1), (2 * SEG + 1, 1)] {
        for peer in peers() {
            let mut s = Script::accepted_over(peer.sack().rtt(ms(10)), link(65_000));
            s.write(len);
            assert_eq!(lengths(&mut s), [(len, true)]);
            s.expect_within(ms(100), data(1 + len - last, last));
        }
    }
}
