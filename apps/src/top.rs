//! What `linerate top` shows: figures of counters, the connections, and a screen of both.

mod figures;
mod sample;
mod screen;
mod state;
mod units;

pub use figures::{Figures, plain};
pub use sample::{News, Sample, Watcher};
pub use screen::draw;
pub use state::{Outcome, State};
