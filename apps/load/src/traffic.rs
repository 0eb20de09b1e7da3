//! What loads do on their connections: the seam between how a load goes and what it is of.

use linerate_bypass::time::Instant;
use linerate_bypass::{ConnId, OneSidedResult, Transport};

/// What a load does on each of its connections.
pub trait Traffic: Send + 'static {
    /// What it keeps for each connection.
    type Stream: Send;

    /// A new connection: the `index`th of the whole load.
    fn stream(&self, index: usize) -> Self::Stream;

    /// Whether all that has to be sent before measuring has been sent and answered. Until it is, what is sent is that.
    fn is_prepared(&self) -> bool {
        true
    }

    /// The traffic begins, on `connections` of the `all` connections of the whole load.
    #[expect(unused_variables, reason = "most have nothing to do with it")]
    fn begin(&mut self, now: Instant, connections: usize, all: usize) {}

    /// Measuring begins: from here on it counts. At once when the traffic has begun, or when it is warm.
    #[expect(unused_variables, reason = "most have nothing to do with it")]
    fn measure(&mut self, now: Instant) {}

    /// Measuring is over.
    #[expect(unused_variables, reason = "most have nothing to do with it")]
    fn end(&mut self, until: Instant) {}

    /// When there is something to be sent next on any of the connections, whether or not something is received: the
    /// pace of an open loop.
    fn due(&self) -> Option<Instant> {
        None
    }

    /// Sends what may be sent now. Called first when preparing and when measuring begins, then whenever there is room
    /// or something has been received or is due.
    fn send(&mut self, net: &mut impl Transport, conn: ConnId, stream: &mut Self::Stream);

    /// Takes in what has been received; `measuring` says whether it counts. Before and after measuring there may
    /// be something to receive too.
    fn receive(
        &mut self,
        net: &mut impl Transport,
        conn: ConnId,
        stream: &mut Self::Stream,
        measuring: bool,
    ) -> Result<(), Corrupt>;

    /// Takes in what has been received, as [`receive`](Self::receive) does, and sends what may be sent then.
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

    /// Takes in what came of an operation on the peer's memory.
    #[expect(unused_variables, reason = "most have nothing to do with it")]
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

    /// Whether nothing is on its way of which it has to be known what came of it: the connection is not closed before.
    #[expect(unused_variables, reason = "most have nothing to do with it")]
    fn is_idle(&self, stream: &Self::Stream) -> bool {
        true
    }

    /// A connection is gone.
    #[expect(unused_variables, reason = "most have nothing to do with it")]
    fn lost(&mut self, stream: Self::Stream) {}

    /// Requests that were answered while measuring, if it has any.
    fn answered(&self) -> Option<u64> {
        None
    }

    /// What has been done so far, in the units that a progress line shows.
    fn progress(&self) -> u64;
}

/// Other bytes arrived than had to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Corrupt;
