//! Removal of everything that a killed process leaves behind.

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::Namespace;
    use crate::program::Program;
    use crate::{rerun, wait_for};
    use rustix::process::Signal;
    use std::fs;

    #[test]
    fn killed_process_leaves_no_directory_and_no_namespace() {
        if !rerun::is_root() {
            return;
        }
        rerun::parts(|role| {
            let directory = std::env::temp_dir().join(format!("linerate-remover-{}", std::process::id()));
            if role != rerun::MAIN {
                fs::create_dir_all(directory.join("inner")).unwrap();
                let _remover = Remover::start(&directory).unwrap();
                let namespace = Namespace::new("killed").unwrap();
                let mut sleep = namespace.command("sleep").arg("1000").spawn().unwrap();
                println!("left {} {} {}", directory.display(), namespace.name(), sleep.id());
                // Does not end before this process is killed.
                sleep.wait().unwrap();
            }
            let mut program = Program::start(rerun::command("killed"));
            let line = program.wait_for_line("left ");
            let (_, left) = line.split_once("left ").unwrap();
            let [directory, namespace, sleep] = left.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
            let namespace = Path::new("/run/netns").join(namespace);
            assert!(Path::new(directory).exists() && namespace.exists());
            let command_line = || fs::read(format!("/proc/{sleep}/cmdline")).unwrap_or_default();
            // `ip netns exec` enters the namespace before it executes the program.
            wait_for("the start of the process", || command_line().starts_with(b"sleep"));
            program.signal(Signal::KILL);
            wait_for("the removal of the namespace", || !namespace.exists());
            wait_for("the removal of the directory", || !Path::new(directory).exists());
            // A process that has ended and was not waited for has no command line.
            wait_for("the end of the process", || command_line().is_empty());
            program.wait();
        });
    }

    #[test]
    fn dropped_remover_removes_nothing() {
        let directory = std::env::temp_dir().join(format!("linerate-remover-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        drop(Remover::start(&directory).unwrap());
        fs::remove_dir(&directory).unwrap();
    }
}
