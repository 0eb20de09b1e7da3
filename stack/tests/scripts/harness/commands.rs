//! Commands of a script to the service.

use super::app::Command;
use super::script::Script;
use super::segment::Rel;

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
    pub fn write(&mut self, n: Rel) {
        self.command(Command::Write(n as usize));
    }

    #[track_caller]
    pub fn send(&mut self, n: Rel) {
        self.command(Command::Send(n as usize));
    }

    #[track_caller]
    pub fn read(&mut self, n: Rel) {
        self.command(Command::Read(n as usize));
    }

    /// Has the service leave received data unread.
    #[track_caller]
    pub fn stop_reading(&mut self) {
        self.command(Command::Reading(false));
    }

    /// Has the service consume received data, which is its initial mode.
    #[track_caller]
    pub fn start_reading(&mut self) {
        self.command(Command::Reading(true));
    }

    /// Has the service write `n` bytes at the next `readable`.
    #[track_caller]
    pub fn write_on_readable(&mut self, n: Rel) {
        self.command(Command::WriteOnReadable(n as usize));
    }

    /// Has the service forward received data to the peer.
    #[track_caller]
    pub fn echo(&mut self) {
        self.command(Command::Echo);
    }

    /// Has the service run `commands` at the next `readable` in place of its default action.
    #[track_caller]
    pub fn on_readable(&mut self, commands: Vec<Command>) {
        self.command(Command::OnReadable(commands));
    }

    #[track_caller]
    pub fn close(&mut self) {
        self.command(Command::Close);
    }

    #[track_caller]
    pub fn abort(&mut self) {
        self.command(Command::Abort);
    }
}
