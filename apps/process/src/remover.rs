//! Removal of everything that remains of a killed process.

use crate::error::Error;
use crate::namespace::own_prefix;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Waits for the end of its input, which the end of the parent closes. `$1` is the prefix of namespaces, `$2` a
/// directory.
const SCRIPT: &str = r#"
trap '' HUP INT TERM
read -r _
for path in /run/netns/"$1"*; do
    [ -e "$path" ] || continue
    name=${path##*/}
    ip netns pids "$name" | xargs -r kill -KILL
    ip netns del "$name"
done
rm -rf -- "$2"
"#;

/// Process that removes a directory and the network namespaces of this process, with the processes in them, if this
/// process is killed. Dropping it, after everything was removed in order, ends it without an effect.
#[derive(Debug)]
pub struct Remover(Child);

impl Remover {
    /// Starts the process, which removes `directory`. It does not receive signals to this process group.
    pub fn start(directory: &Path) -> Result<Remover, Error> {
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "sh", &own_prefix()]).arg(directory).current_dir("/").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().map(Remover).map_err(|error| Error::Start { program: "sh".to_owned(), error })
    }
}

impl Drop for Remover {
    fn drop(&mut self) {
        // Fails only if the process has ended, which `wait` then observes.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
