//! Introspection of a running worker.

use crate::common::{DEADLINE, Running, listening};
use crate::services::Echo;
use linerate_kernel::{Config, bind};
use linerate_service::inspect::{ConnPage, ConnState, Snapshot, StatsQuery};
use linerate_service::{AppSender, ConnId};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::channel;

fn snapshot<M>(app_sender: &AppSender<M>) -> Snapshot {
    let (reply, answer) = channel();
    assert!(app_sender.query(0, StatsQuery::Counters { reply }));
    answer.recv_timeout(DEADLINE).unwrap()
}

fn page<M>(app_sender: &AppSender<M>, from: usize, most: usize) -> ConnPage {
    let (reply, answer) = channel();
    assert!(app_sender.query(0, StatsQuery::Connections { from, most, reply }));
    answer.recv_timeout(DEADLINE).unwrap()
}

fn check_inspection(config: &Config) {
    let (app_sender, mut sockets) = bind(config, 1).unwrap();
    let server = Running::on(sockets.remove(0), Echo::default());
    assert_eq!((snapshot(&app_sender).gauges.connections, page(&app_sender, 0, 10)), (0, ConnPage::default()));

    let mut streams: Vec<_> = (0..3).map(|_| TcpStream::connect(server.address).unwrap()).collect();
    for stream in &mut streams {
        stream.write_all(b"there").unwrap();
        stream.read_exact(&mut [0; 5]).unwrap();
    }
    let stats = snapshot(&app_sender);
    assert_eq!((stats.worker, stats.gauges.connections, stats.summary.accepted), (0, 3, 3));
    assert_eq!((stats.summary.rx_bytes, stats.summary.tx_bytes), (15, 15));

    let (first, rest) = (page(&app_sender, 0, 2), page(&app_sender, 2, 2));
    assert_eq!((first.connections.len(), first.next, rest.connections.len(), rest.next), (2, Some(2), 1, None));
    let all: Vec<_> = first.connections.into_iter().chain(rest.connections).collect();
    for (slot, info) in all.iter().enumerate() {
        assert_eq!((info.conn, info.local), (ConnId::new(0, slot, 0), Some(server.address)));
        assert_eq!((info.state, info.unread, info.unsent), (ConnState::Established, 0, 0));
    }
    let mut remotes: Vec<_> = all.iter().map(|info| info.remote).collect();
    let mut expected: Vec<_> = streams.iter().map(|stream| stream.local_addr().unwrap()).collect();
    remotes.sort();
    expected.sort();
    assert_eq!(remotes, expected);
    drop(server.finish());
}

#[test]
fn sleeping_worker_wakes_up_to_report_its_connections() {
    check_inspection(&listening());
}

#[test]
fn spinning_worker_reports_its_connections() {
    check_inspection(&Config { spin: true, ..listening() });
}

#[test]
fn query_of_an_ended_worker_does_not_wait_forever() {
    let (app_sender, mut sockets) = bind(&listening(), 1).unwrap();
    drop(Running::on(sockets.remove(0), Echo::default()).finish());
    let (reply, answer) = channel();
    // The query is in a mailbox without a reader.
    assert!(app_sender.query(0, StatsQuery::Counters { reply }));
    drop(app_sender);
    assert!(answer.recv_timeout(DEADLINE).is_err());
}
