//! Service that runs tasks.

use crate::conn::Conn;
use crate::context;
use crate::executor::Executor;
use crate::task;
use crate::wake::Woken;
use linerate_service::inspect::ServiceMetrics;
use linerate_service::time::Duration;
use linerate_service::{CloseReason, ConnId, ConnectError, Datagram, Origin, Service, Stop, Transport, WorkerCtx};
use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

/// Service of a worker that runs tasks, on any transport: the stack, kernel sockets or RDMA, with or without split
/// threads.
///
/// Tasks are polled within the event that wakes them. A task that is woken by another thread, by its own wake-up, or by
/// a timer is polled in the next turn.
pub struct AsyncService {
    executor: Executor,
    main: Option<Box<dyn FnOnce()>>,
    requests: Option<Rc<Cell<u64>>>,
    /// Connections by their slots.
    conns: Vec<Option<Rc<Conn>>>,
}

/// Connection of an [`AsyncService`].
pub struct AsyncConn(Rc<Conn>);

impl AsyncService {
    /// Creates the service of one worker. `main` is called when the worker starts and returns the first task.
    pub fn new<F>(ctx: WorkerCtx<Woken>, main: impl FnOnce() -> F + 'static) -> Self
    where
        F: Future<Output = ()> + 'static,
    {
        let main = Box::new(|| drop(task::spawn(main())));
        AsyncService {
            executor: Executor::new(ctx.worker, ctx.app_sender),
            main: Some(main),
            requests: None,
            conns: Vec::new(),
        }
    }

    /// Makes [`draining`](crate::draining) follow `stop`.
    #[must_use]
    pub fn with_stop(self, stop: Stop) -> Self {
        task::follow(&self.executor, stop);
        self
    }

    /// Makes [`Service::metrics`] return the value of `requests`, in which tasks count the requests that they serve.
    #[must_use]
    pub fn with_requests(mut self, requests: Rc<Cell<u64>>) -> Self {
        self.requests = Some(requests);
        self
    }

    /// Calls `event`, then polls the tasks that it has woken.
    #[inline]
    fn handle(&self, net: &mut impl Transport, event: impl FnOnce(&Executor)) {
        let executor = &self.executor;
        executor.set_now(net.now());
        context::enter(net, executor, || {
            event(executor);
            executor.run();
        });
    }
}

impl Service for AsyncService {
    type Conn = AsyncConn;
    type Message = Woken;

    fn start(&mut self, net: &mut impl Transport) {
        let main = self.main.take();
        self.handle(net, |_| main.into_iter().for_each(|main| main()));
    }

    fn opened(&mut self, net: &mut impl Transport, id: ConnId, origin: Origin) -> AsyncConn {
        let conn = Rc::new(Conn::new(id, net, &self.executor));
        self.handle(net, |executor| {
            let is_wanted = match origin {
                Origin::Accepted => executor.registry.accept(&conn),
                Origin::Connected(token) => executor.registry.end_connect(token, Ok(&conn)),
            };
            if !is_wanted {
                context::net(|net| net.abort(id));
            }
        });
        if self.conns.len() <= id.slot() {
            self.conns.resize(id.slot() + 1, None);
        }
        self.conns[id.slot()] = Some(conn.clone());
        AsyncConn(conn)
    }

    fn failed(&mut self, net: &mut impl Transport, token: u64, error: ConnectError) {
        self.handle(net, |executor| {
            executor.registry.end_connect(token, Err(error));
        });
    }

    fn burst(&mut self, net: &mut impl Transport, readable: &[ConnId]) -> usize {
        let AsyncService { executor, conns, .. } = self;
        executor.set_now(net.now());
        context::enter(net, executor, || {
            executor.run_each(readable, |id| {
                if let Some(Some(conn)) = conns.get(id.slot())
                    && conn.id == *id
                {
                    conn.has_input.set(true);
                    conn.reader.wake_and_poll(executor);
                }
            });
        });
        readable.len()
    }

    fn writable(&mut self, net: &mut impl Transport, _: ConnId, conn: &mut AsyncConn) {
        self.handle(net, |_| conn.0.writer.wake());
    }

    fn peer_closed(&mut self, net: &mut impl Transport, _: ConnId, conn: &mut AsyncConn) {
        conn.0.peer_closed.set(true);
        conn.0.has_input.set(true);
        self.handle(net, |_| conn.0.reader.wake());
    }

    fn message(&mut self, net: &mut impl Transport, _: Woken) {
        self.handle(net, Executor::begin_turn);
    }

    #[inline]
    fn turn(&mut self, net: &mut impl Transport) -> Option<Duration> {
        if self.executor.registry.drain.is_requested() || !self.executor.is_idle(net.now()) {
            self.handle(net, |executor| {
                executor.registry.drain.begin_turn();
                executor.begin_turn();
            });
        }
        self.executor.idle_time()
    }

    fn datagram(&mut self, net: &mut impl Transport, datagram: Datagram) {
        self.handle(net, |executor| {
            let dropped = match executor.registry.socket(datagram.local) {
                Some(socket) => socket.push(datagram).err(),
                None => Some(datagram),
            };
            if let Some(datagram) = dropped {
                context::net(|net| net.drop_datagram(datagram));
            }
        });
    }

    fn metrics(&self) -> ServiceMetrics {
        let requests = self.requests.as_ref().map(|requests| requests.get());
        ServiceMetrics { requests, ..ServiceMetrics::default() }
    }

    fn closed(&mut self, net: &mut impl Transport, id: ConnId, conn: AsyncConn, reason: CloseReason) {
        if let Some(kept) = self.conns.get_mut(id.slot()) {
            kept.take_if(|conn| conn.id == id);
        }
        conn.0.ended.set(Some(reason));
        conn.0.has_input.set(true);
        self.handle(net, |_| {
            conn.0.reader.wake();
            conn.0.writer.wake();
        });
    }
}
