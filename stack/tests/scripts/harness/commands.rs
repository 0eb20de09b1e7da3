//! What the service is told to do.

use super::app::Command;
use super::script::Script;
use super::segment::Rel;

impl Script {
    /// Tells the connection of the current port's service to do something.
    #[track_caller]
    pub(super) fn command(&mut self, command: Command) {
        self.note(format_args!("app {command:?}"));
        let port = self.port;
        for at in 0..self.arms.len() {
            if !self.arms[at].command(port, command.clone()) {
                self.fail(&format!("the service has no connection of this port with {}", self.arms[at].name));
            }
        }
        self.settle();
    }

    /// The service writes `n` bytes.
    #[track_caller]
    pub fn write(&mut self, n: Rel) {
        self.command(Command::Write(n as usize));
    }

    /// The service hands over `n` bytes that it owns.
    #[track_caller]
    pub fn send(&mut self, n: Rel) {
        self.command(Command::Send(n as usize));
    }

    /// The service consumes `n` bytes.
    #[track_caller]
    pub fn read(&mut self, n: Rel) {
        self.command(Command::Read(n as usize));
    }

    /// The service leaves what arrives where it is.
    #[track_caller]
    pub fn stop_reading(&mut self) {
        self.command(Command::Reading(false));
    }

    /// The service consumes what is there and what arrives, as it does from the beginning.
    #[track_caller]
    pub fn start_reading(&mut self) {
        self.command(Command::Reading(true));
    }

    /// The service will write `n` bytes when something arrives next.
    #[track_caller]
    pub fn answer(&mut self, n: Rel) {
        self.command(Command::Answer(n as usize));
    }

    /// The service sends back what is there and what arrives.
    #[track_caller]
    pub fn echo(&mut self) {
        self.command(Command::Echo);
    }

    /// The service does this when something becomes readable next, in place of what it does of its own accord.
    #[track_caller]
    pub fn next(&mut self, commands: Vec<Command>) {
        self.command(Command::Next(commands));
    }

    /// The service does this now.
    #[track_caller]
    pub fn order(&mut self, command: Command) {
        self.command(command);
    }

    /// The service finishes sending.
    #[track_caller]
    pub fn close(&mut self) {
        self.command(Command::Close);
    }

    /// The service aborts.
    #[track_caller]
    pub fn abort(&mut self) {
        self.command(Command::Abort);
    }
}
