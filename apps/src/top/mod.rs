//! Display of `linerate top`: rates of counters, connections, and a screen of both.

mod rates;
mod sample;
mod screen;
mod state;
mod units;

pub use rates::{WorkerRates, plain};
pub use sample::{Sample, Sampler, SamplerEvent};
pub use screen::{WIDE, draw};
pub use state::{KeyAction, ScreenState};
pub use units::time;
