//! Answers from another thread.

use linerate_bypass::{AppSender, Bytes, ConnId, Origin, Service, Transport};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};

/// What the other thread is asked: to answer these bytes of this connection.
pub type Order = (ConnId, Bytes);

/// Hands what arrives to another thread, and sends what that posts back. Bytes cross both ways uncopied.
pub struct Deferred {
    orders: Sender<Order>,
}

impl Deferred {
    /// The service, and the orders that another thread is to answer.
    pub fn new() -> (Self, Receiver<Order>) {
        let (orders, receiver) = channel();
        (Deferred { orders }, receiver)
    }

    /// Answers orders with what they bring, until the service is gone.
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
            if let Err(back) = net.send(conn, reply) {
                waiting.push_front(back);
                break;
            }
        }
    }
}

impl Service for Deferred {
    /// Replies for which there was no room.
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

    fn on_conn_message(&mut self, net: &mut impl Transport, conn: ConnId, waiting: &mut VecDeque<Bytes>, reply: Bytes) {
        waiting.push_back(reply);
        Self::send(net, conn, waiting);
    }
}
