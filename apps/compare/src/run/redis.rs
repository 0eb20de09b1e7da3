//! redis-server in place of a server of Linerate: on kernel sockets, and unmodified under `linerate run`.

use super::Setting;
use super::link::Link;
use super::network::End;
use super::plan::Planned;
use std::path::Path;
use std::process::Command;

/// The program.
const PROGRAM: &str = "redis-server";
/// Port, which is not the usual one: that may be in use on the host.
pub const PORT: u16 = 16379;
/// Part of the line that it prints when it accepts connections.
pub const READY: &str = "Ready to accept connections";

/// Returns reason and remedy if the program is not installed.
pub fn obstacle() -> Option<(String, String)> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_installed = std::env::split_paths(&path).any(|directory| directory.join(PROGRAM).is_file());
    (!is_installed).then(|| (format!("{PROGRAM} is not installed"), format!("apt-get install {PROGRAM}")))
}

/// Returns the command of the server of `row`, which keeps its values in memory only.
pub fn command(setting: &Setting, link: &Link, row: &Planned) -> Command {
    let core = setting.cores.worker.to_string();
    let mut command = if row.spec.is_kernel() {
        link.command(End::Server, Path::new(PROGRAM))
    } else {
        let mut command = link.command(End::Server, &setting.linerate);
        command.args(["run", "--cores", &core]).args(link.args(End::Server)).args(&row.server).args(["--", PROGRAM]);
        command
    };
    let address = link.listen_on(PORT);
    let ip = address.rsplit_once(':').map_or("", |(ip, _)| ip);
    command.args(["--bind", ip, "--port", &PORT.to_string(), "--protected-mode", "no", "--save", ""]);
    command.args(["--server_cpulist", &core]);
    command
}
