//! Servers on the loopback interface that do not choose a port by themselves, nor say when they are ready.

use crate::external::process::Error;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long a server may take to listen.
const PATIENCE: Duration = Duration::from_secs(10);

/// Waits until `program` listens at `address`.
pub fn wait_for(address: SocketAddr, program: &str, interrupted: &AtomicBool) -> Result<(), Error> {
    let until = Instant::now() + PATIENCE;
    while let Err(error) = TcpStream::connect(address) {
        if interrupted.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        if Instant::now() > until {
            return Err(Error::Start { program: program.to_owned(), error });
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
