//! Layout of messages (IBA tables 106 to 113, annex A11).

use super::super::mad::Rej;
use super::*;

/// Bytes of a message by their offset in the MAD. All others are zero.
fn assert_layout(mad: &Mad, fields: &[(usize, &[u8])]) {
    let mut expected = [0; MAD_LEN];
    for (offset, bytes) in fields {
        expected[*offset..][..bytes.len()].copy_from_slice(bytes);
    }
    for (offset, (byte, expected)) in mad.0.iter().zip(expected).enumerate() {
        assert_eq!(*byte, expected, "offset {offset}");
    }
}

const TRANSACTION: u64 = 0x0102_0304_0506_0708;
const MAPPED_1: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];
const MAPPED_2: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 2];

const SENDER: Endpoint = Endpoint {
    comm: 0x1112_1314,
    guid: 0x2122_2324_2526_2728,
    qp: 0x31_3233,
    psn: 0x41_4243,
    responder_resources: 0x34,
    initiator_depth: 0x35,
};

fn req() -> Req {
    Req {
        transaction: TRANSACTION,
        sender: SENDER,
        service: Req::service_of(0x1f90),
        transport: 0,
        retries: 5,
        rnr_retries: 6,
        mtu: 3,
        is_shared: false,
        local: V4[0].parse().unwrap(),
        remote: V4[1].parse().unwrap(),
        port: Some(0xc123),
        private_data: padded(b"hello"),
    }
}

#[test]
fn req_has_the_layout_of_the_specification() {
    let mad = req().write();
    let fields: &[(usize, &[u8])] = &[
        (0, &[1, 0x07, 2, 0x03]),                    // base version, class, class version, Send (13.4.3)
        (8, &[1, 2, 3, 4, 5, 6, 7, 8]),              // transaction ID
        (16, &[0, 0x10]),                            // attribute ID (table 104)
        (24, &[0x11, 0x12, 0x13, 0x14]),             // local communication ID (table 106)
        (32, &[0, 0, 0, 0, 0x01, 0x06, 0x1f, 0x90]), // service ID (A11.2)
        (40, &[0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28]), // local CA GUID
        (56, &[0x31, 0x32, 0x33, 0x34]),             // local QPN, responder resources
        (63, &[0x35]),                               // initiator depth
        (67, &[20 << 3 | 1]),                        // remote response timeout, RC, end-to-end flow control
        (68, &[0x41, 0x42, 0x43, 20 << 3 | 5]),      // starting PSN, local response timeout, retry count
        (72, &[0xff, 0xff]),                         // partition key
        (74, &[3 << 4 | 6, 15 << 4]),                // path MTU, RNR retry count; CM retries, no SRQ
        (76, &[0xff, 0xff, 0xff, 0xff]),             // primary local and remote port LID
        (80, &MAPPED_1),                             // primary local port GID
        (96, &MAPPED_2),                             // primary remote port GID
        (117, &[64]),                                // hop limit, after flow label, packet rate, traffic class
        (119, &[16 << 3]),                           // local ACK timeout, after SL and subnet local
        (164, &[0, 4 << 4, 0xc1, 0x23]),             // versions, IP version, source port (A11.3)
        (180, &[10, 0, 0, 1]),                       // source address, in the last four bytes
        (196, &[10, 0, 0, 2]),                       // destination address
        (200, b"hello"),                             // private data of the program
    ];
    assert_layout(&mad, fields);
    assert_eq!(Req::read(&mad), req());

    let other = Req {
        is_shared: true,
        local: V6[0].parse().unwrap(),
        remote: V6[1].parse().unwrap(),
        retries: 7,
        rnr_retries: 7,
        ..req()
    };
    let mad = other.write();
    assert_eq!(Req::read(&mad), other);
    // SRQ, no end-to-end flow control; version 6; addresses in full.
    assert_eq!((mad.0[67], mad.0[75], mad.0[165]), (20 << 3, 15 << 4 | 8, 6 << 4));
    assert_eq!([&mad.0[80..96], &mad.0[168..184]], [gid_of(other.local); 2]);
}

#[test]
fn rep_has_the_layout_of_the_specification() {
    let rep = Rep {
        transaction: TRANSACTION,
        sender: SENDER,
        receiver: 0x1516_1718,
        rnr_retries: 6,
        is_shared: true,
        private_data: padded(b"hello"),
    };
    let mad = rep.write();
    let fields: &[(usize, &[u8])] = &[
        (0, &[1, 0x07, 2, 0x03]),
        (8, &[1, 2, 3, 4, 5, 6, 7, 8]),
        (16, &[0, 0x13]),
        (24, &[0x11, 0x12, 0x13, 0x14]),   // local communication ID (table 110)
        (28, &[0x15, 0x16, 0x17, 0x18]),   // remote communication ID
        (36, &[0x31, 0x32, 0x33]),         // local QPN, after the Q_Key
        (44, &[0x41, 0x42, 0x43]),         // starting PSN, after the EE context
        (48, &[0x34, 0x35]),               // responder resources, initiator depth
        (50, &[15 << 3, 6 << 5 | 1 << 4]), // target ACK delay, no flow control; RNR retry count, SRQ
        (52, &[0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28]), // local CA GUID
        (60, b"hello"),                    // private data
    ];
    assert_layout(&mad, fields);
    assert_eq!(Rep::read(&mad), rep);
}

#[test]
fn other_messages_have_the_layout_of_the_specification() {
    let header: [(usize, &[u8]); 4] = [(0, &[1, 0x07, 2, 0x03]), (15, &[5]), (27, &[6]), (31, &[7])];
    let with = |fields: &[(usize, &'static [u8])]| [&header[..], fields].concat();
    let rej = |reason, private_data| Rej { about: About::Other, reason, guid: 0x0807_0605_0403_0201, private_data };
    let cases = [
        (Mad::mra(5, 6, 7, About::Rep, 24), with(&[(17, &[0x11]), (32, &[1 << 6, 24 << 3])])),
        (Mad::rej(5, 6, 7, &rej(28, b"no")), with(&[(17, &[0x12]), (32, &[2 << 6, 0, 0, 28]), (108, b"no")])),
        (
            Mad::rej(5, 6, 7, &rej(4, b"")),
            with(&[(17, &[0x12]), (32, &[2 << 6, 8 << 1, 0, 4]), (36, &[8, 7, 6, 5, 4, 3, 2, 1])]),
        ),
        (Mad::new(attribute::RTU, 5, 6, 7), with(&[(17, &[0x14])])),
        (Mad::dreq(5, 6, 7, 0x31_3233), with(&[(17, &[0x15]), (32, &[0x31, 0x32, 0x33])])),
        (Mad::new(attribute::DREP, 5, 6, 7), with(&[(17, &[0x16])])),
    ];
    for (mad, fields) in cases {
        assert_layout(&mad, &fields);
        assert_eq!(Mad::parse(&mad.0), Some(mad));
    }
}
