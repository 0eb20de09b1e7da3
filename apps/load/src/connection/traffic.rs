//! Interface between the phases of a load and its traffic.

use linerate_service::time::Instant;
use linerate_service::{ConnId, OneSidedResult, Transport};

/// Traffic of a load on its connections.
pub trait Traffic: Send + 'static {
    /// State of a connection.
    type Stream: Send;

    /// Returns the state of a new connection, number `index` of the whole load.
    fn stream(&self, index: usize) -> Self::Stream;

    /// Returns whether preparation is complete: everything to send before measuring has been sent and answered. Until
    /// then, `send` prepares.
    fn is_prepared(&self) -> bool {
        true
    }

    /// Returns whether preparation has failed, which ends the load.
    fn has_given_up(&self) -> bool {
        false
    }

    /// Begins the traffic, on `connections` of the `all` connections of the whole load.
    #[expect(unused_variables, reason = "most traffic needs no action")]
    fn begin(&mut self, now: Instant, connections: usize, all: usize) {}

    /// Begins the measurement: answers count from now on. Called when the traffic begins, or after warming up.
    #[expect(unused_variables, reason = "most traffic needs no action")]
    fn measure(&mut self, now: Instant) {}

    /// Ends the measurement.
    #[expect(unused_variables, reason = "most traffic needs no action")]
    fn end(&mut self, until: Instant) {}

    /// Records the ages of a connection's requests without an answer. Called after [`end`](Self::end).
    #[expect(unused_variables, reason = "bulk data has no requests")]
    fn record_unanswered(&mut self, stream: &Self::Stream, until: Instant) {}

    /// Returns the time of the next request of an open loop, on any connection.
    fn due(&self) -> Option<Instant> {
        None
    }

    /// Sends as much as possible. Called when preparing and measuring begin, and whenever there is room, input, or a
    /// due request.
    fn send(&mut self, net: &mut impl Transport, conn: ConnId, stream: &mut Self::Stream);

    /// Processes received bytes, which count if `measuring`. Also called before and after measuring.
    fn receive(
        &mut self,
        net: &mut impl Transport,
        conn: ConnId,
        stream: &mut Self::Stream,
        measuring: bool,
    ) -> Result<(), Corrupt>;

    /// Processes received bytes as [`receive`](Self::receive) does, then sends.
    fn exchange(
        &mut self,
        net: &mut impl Transport,
        conn: ConnId,
        stream: &mut Self::Stream,
        measuring: bool,
    ) -> Result<(), Corrupt> {
        self.receive(net, conn, stream, measuring)?;
        self.send(net, conn, stream);
        Ok(())
    }

    /// Returns whether requests are to be sent on all connections now. Called after input has been processed and
    /// answered.
    #[expect(unused_variables, reason = "most connections do not wait for each other")]
    fn begins_anew(&mut self, now: Instant) -> bool {
        false
    }

    /// Handles the completion of a one-sided operation.
    #[expect(unused_variables, reason = "most traffic needs no action")]
    fn one_sided_done(
        &mut self,
        net: &mut impl Transport,
        conn: ConnId,
        stream: &mut Self::Stream,
        done: (u64, OneSidedResult),
        measuring: bool,
    ) -> Result<(), Corrupt> {
        Ok(())
    }

    /// Returns whether no operation is outstanding whose result is needed before the connection may close.
    #[expect(unused_variables, reason = "most traffic needs no action")]
    fn is_idle(&self, stream: &Self::Stream) -> bool {
        true
    }

    /// Handles the loss of a connection.
    #[expect(unused_variables, reason = "most traffic needs no action")]
    fn lost(&mut self, stream: Self::Stream) {}

    /// Returns the requests answered while measuring, if the traffic has requests.
    fn answered(&self) -> Option<u64> {
        None
    }

    /// Returns the progress, in the unit of the progress line.
    fn progress(&self) -> u64;
}

/// Received bytes differ from the expected ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Corrupt;
