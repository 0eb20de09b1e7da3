//! Packet capture of a port, read back with libpcap.

use super::{Link, assert_no_errors, load};
use crate::common::{assert_refused, linerate, summary};
use linerate_harness::program::{Program, turn};
use pcap::{Capture, Precision};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Captured frame.
#[derive(Debug)]
struct Frame {
    /// Time since 1970.
    at: Duration,
    len: usize,
    bytes: Vec<u8>,
}

/// Reads the frames in `file` with libpcap.
fn frames(file: &Path) -> Vec<Frame> {
    let mut capture = Capture::from_file_with_precision(file, Precision::Nano).unwrap();
    let mut frames = Vec::new();
    while let Ok(packet) = capture.next_packet() {
        let header = packet.header;
        let at = Duration::new(header.ts.tv_sec as u64, header.ts.tv_usec as u32);
        frames.push(Frame { at, len: header.len as usize, bytes: packet.data.to_vec() });
    }
    frames
}

/// Reads the direction of each frame from the option epb_flags, which libpcap does not expose.
fn directions(file: &Path) -> Vec<u32> {
    let file = std::fs::read(file).unwrap();
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    let (mut at, mut directions) = (0, Vec::new());
    while at < file.len() {
        let len = word(at + 4) as usize;
        if word(at) == 6 {
            let options = at + 28 + (word(at + 20) as usize).next_multiple_of(4);
            assert_eq!(word(options), 4 << 16 | 2);
            directions.push(word(options + 4));
        }
        at += len;
    }
    directions
}

/// Runs a load of one connection against an echo server that captures its port with these options.
fn captured(options: &[&str]) -> (Link, PathBuf, serde_json::Value) {
    let link = Link::memif();
    let file = link.directory.path().join("frames.pcapng");
    let mut server = link.server();
    server.arg("--pcap").arg(&file).args(options);
    let server = Program::serve(server);
    assert_no_errors(&Program::start(load(&link.load, "--connections 1 --duration 200ms")).wait());
    let summary = summary(&server.stop());
    (link, file, summary)
}

#[test]
fn every_frame_is_captured_with_time_and_direction() {
    let _turn = turn();
    let before = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let (_link, file, summary) = captured(&[]);
    let after = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let (frames, directions) = (frames(&file), directions(&file));
    let count = |direction| directions.iter().filter(|other| **other == direction).count();
    assert_eq!(count(1), summary["rx_frames"].as_u64().unwrap() as usize, "{summary}");
    assert_eq!(count(2), summary["tx_frames"].as_u64().unwrap() as usize, "{summary}");
    assert_eq!(frames.len(), directions.len());
    assert!(frames.is_sorted_by_key(|frame| frame.at), "frames of one worker are in order");
    assert!(frames[0].at >= before && frames[frames.len() - 1].at <= after);
    // The first IPv4 frame is the received SYN, and the source address matches the direction.
    let is_from = |frame: &Frame, last: u8| frame.bytes[26..30] == [10, 9, 0, last];
    let ip: Vec<_> = frames.iter().zip(&directions).filter(|(frame, _)| frame.bytes[12..14] == [8, 0]).collect();
    assert!(ip[0].0.bytes[47] & 0x12 == 2 && *ip[0].1 == 1, "{:?}", ip[0]);
    assert!(ip.iter().all(|(frame, direction)| is_from(frame, if **direction == 1 { 1 } else { 2 })));
    assert!(frames.iter().all(|frame| frame.bytes.len() == frame.len));
}

#[test]
fn filter_and_snap_length_reduce_the_capture() {
    let _turn = turn();
    let syn = "tcp[tcpflags] & tcp-syn != 0";
    let (_link, file, _) = captured(&["--pcap-filter", syn, "--pcap-snap", "54"]);
    let frames = frames(&file);
    assert_eq!(directions(&file), [1, 2]);
    assert!(frames.iter().all(|frame| frame.bytes.len() == 54 && frame.len > 54), "{frames:?}");
}

#[test]
fn full_file_is_complete_and_the_service_continues() {
    let _turn = turn();
    let link = Link::memif();
    let file = link.directory.path().join("frames.pcapng");
    let mut server = link.server();
    server.args(["--pcap-size", "4m", "--pcap"]).arg(&file);
    let mut server = Program::serve(server);
    let more = "--connections 8 --depth 8 --size 1400 --duration 500ms";
    let report = summary(&Program::start(load(&link.load, more)).wait());
    assert_eq!(report["errors"], 0, "{report}");
    server.wait_for_log("has reached its size limit");
    assert!(server.stop().status.success());
    let len = std::fs::metadata(&file).unwrap().len();
    assert!((4 << 20) - 2000 < len && len <= 4 << 20, "{len}");
    assert_eq!(frames(&file).len(), directions(&file).len());
}

#[test]
fn invalid_capture_options_are_refused_early() {
    let port = "echo serve --via memif:/nowhere/sock --ip 10.9.0.2/24 --listen 10.9.0.2:7";
    let refused = |options: &[&str], status, part: &str| {
        let mut command = linerate(port);
        command.args(options);
        assert_refused(command, status, &[part]);
    };
    refused(&["--pcap", "/nowhere/frames"], 1, "--pcap /nowhere/frames: No such file");
    refused(&["--pcap", "/dev/null", "--pcap-filter", "tcp prot 7"], 2, "--pcap-filter 'tcp prot 7': ");
    refused(&["--pcap-filter", "tcp"], 2, "--pcap");
    let kernel = "echo serve --via kernel --listen 127.0.0.1:0 --pcap /dev/null";
    assert_refused(linerate(kernel), 2, &["--pcap has no effect"]);
}
