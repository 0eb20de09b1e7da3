//! Commands of a script to the service.

use super::app::Command;
use super::params::DELAYED_ACK;
use super::script::Script;
use super::segment::{Rel, ack, fin};
use linerate_service::CloseReason;

impl Script {
    /// Executes `command` on the connection of the current port, in every arm.
    #[track_caller]
    pub fn command(&mut self, command: Command) {
        self.note(format_args!("app {command:?}"));
        let port = self.port;
        for at in 0..self.arms.len() {
            if !self.arms[at].command(port, command.clone()) {
                self.fail(&format!("no connection of this port with {}", self.arms[at].name));
            }
        }
        self.run_until_idle();
    }

    #[track_caller]
    pub fn write(&mut self, n: Rel) -> &mut Self {
        self.command(Command::Write(n as usize));
        self
    }

    #[track_caller]
    pub fn send(&mut self, n: Rel) {
        self.command(Command::Send(n as usize));
    }

    #[track_caller]
    pub fn read(&mut self, n: Rel) {
        self.command(Command::Read(n as usize));
    }

    /// Makes the service leave received data unread.
    #[track_caller]
    pub fn stop_reading(&mut self) {
        self.command(Command::Reading(false));
    }

    /// Makes the service consume received data, as it does initially.
    #[track_caller]
    pub fn start_reading(&mut self) {
        self.command(Command::Reading(true));
    }

    /// Makes the service write `n` bytes at the next `readable`.
    #[track_caller]
    pub fn write_on_readable(&mut self, n: Rel) {
        self.command(Command::WriteOnReadable(n as usize));
    }

    /// Makes the service forward received data to the peer.
    #[track_caller]
    pub fn echo(&mut self) {
        self.command(Command::Echo);
    }

    /// Makes the service run `commands` at the next `readable` in place of its default action.
    #[track_caller]
    pub fn on_readable(&mut self, commands: Vec<Command>) {
        self.command(Command::OnReadable(commands));
    }

    #[track_caller]
    pub fn close(&mut self) -> &mut Self {
        self.command(Command::Close);
        self
    }

    /// Closes the connection with a FIN of `seq`, which the peer acknowledges. The peer's stream has ended before
    /// `next`.
    #[track_caller]
    pub fn finish(&mut self, seq: Rel, next: Rel) {
        self.close();
        self.expect(fin(seq, next));
        self.inject(ack(next, seq + 1));
        self.expect_closed(CloseReason::Finished);
    }

    /// Injects a FIN of `seq` and expects its acknowledgement and the end of the peer's stream.
    #[track_caller]
    pub fn close_by_peer(&mut self, seq: Rel, next: Rel) {
        self.inject(fin(seq, next));
        self.expect_within(DELAYED_ACK, ack(next, seq + 1));
        self.expect_peer_closed();
    }

    #[track_caller]
    pub fn abort(&mut self) {
        self.command(Command::Abort);
    }
}
