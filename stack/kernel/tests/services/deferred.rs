//! Replies from another thread.

use linerate_service::{AppSender, Bytes, ConnId, Origin, Service, Transport};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Order for the other thread: reply with these bytes on this connection.
pub type Order = (ConnId, Bytes);

/// Service that passes received data to another thread, and sends the replies of that thread. Data are not copied in
/// either direction.
pub struct Deferred {
    orders: Sender<Order>,
}

impl Deferred {
    /// Creates the service, and the receiver of its orders.
    pub fn new() -> (Self, Receiver<Order>) {
        let (orders, receiver) = channel();
        (Deferred { orders }, receiver)
    }

    /// Answers orders with their own data, until the service ends.
    pub fn answer(orders: Receiver<Order>, app_sender: AppSender<Bytes>) {
        for (conn, bytes) in orders {
            let mut reply = bytes;
            while let Err(back) = app_sender.send_to_conn(conn, reply) {
                reply = back;
                std::thread::yield_now();
            }
        }
    }

    fn send(net: &mut impl Transport, conn: ConnId, waiting: &mut VecDeque<Bytes>) {
        while let Some(reply) = waiting.pop_front() {
            if let Err(unsent) = net.send(conn, reply) {
                waiting.push_front(unsent.bytes);
                break;
            }
        }
    }
}

impl Service for Deferred {
    /// Replies that wait for send space.
    type Conn = VecDeque<Bytes>;
    type Message = Bytes;

    fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) -> VecDeque<Bytes> {
        VecDeque::new()
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut VecDeque<Bytes>) {
        while let Some(bytes) = net.take(conn, usize::MAX) {
            self.orders.send((conn, bytes)).unwrap();
        }
    }

    fn writable(&mut self, net: &mut impl Transport, conn: ConnId, waiting: &mut VecDeque<Bytes>) {
        Self::send(net, conn, waiting);
    }

    fn conn_message(&mut self, net: &mut impl Transport, conn: ConnId, waiting: &mut VecDeque<Bytes>, reply: Bytes) {
        waiting.push_back(reply);
        Self::send(net, conn, waiting);
    }
}
