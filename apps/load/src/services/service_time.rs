//! Distributions of simulated processing times.

use fastrand::Rng;
use linerate::units::{format_duration, parse_duration, parse_duration_or_none};
use std::f64::consts::TAU;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Largest shape of a lognormal distribution. Its mean is 90 times its median.
const MAX_SIGMA: f64 = 3.0;

/// Distribution of simulated processing times. Written as `20us`, `exp:MEAN`, `bimodal:SHORT,LONG,SHARE` or
/// `lognormal:MEDIAN,SIGMA`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ServiceTime {
    /// The same time for each request.
    Fixed(Duration),
    /// Exponentially distributed times with this mean.
    Exponential(Duration),
    /// One of two times.
    Bimodal {
        short: Duration,
        long: Duration,
        /// Probability of `long`.
        share: f64,
    },
    /// Times whose logarithms are normally distributed.
    Lognormal {
        median: Duration,
        /// Standard deviation of the natural logarithm.
        sigma: f64,
    },
}

impl ServiceTime {
    /// No processing time.
    pub const NONE: ServiceTime = ServiceTime::Fixed(Duration::ZERO);

    /// Returns the mean.
    pub fn mean(&self) -> Duration {
        match *self {
            ServiceTime::Fixed(time) | ServiceTime::Exponential(time) => time,
            ServiceTime::Bimodal { short, long, share } => short.mul_f64(1.0 - share) + long.mul_f64(share),
            ServiceTime::Lognormal { median, sigma } => median.mul_f64((sigma * sigma / 2.0).exp()),
        }
    }

    /// Draws the time of a request.
    #[inline]
    pub fn draw(&self, rng: &mut Rng) -> Duration {
        // The argument of the logarithm is in (0, 1].
        let exponential = |rng: &mut Rng| -(1.0 - rng.f64()).ln();
        match *self {
            ServiceTime::Fixed(time) => time,
            ServiceTime::Exponential(mean) => mean.mul_f64(exponential(rng)),
            ServiceTime::Bimodal { short, long, share } => {
                if rng.f64() < share {
                    long
                } else {
                    short
                }
            }
            ServiceTime::Lognormal { median, sigma } => {
                // Box-Muller transform.
                let normal = (2.0 * exponential(rng)).sqrt() * (TAU * rng.f64()).cos();
                median.mul_f64((sigma * normal).exp())
            }
        }
    }
}

impl FromStr for ServiceTime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((name, parameters)) = text.split_once(':') else {
            return parse_duration_or_none(text).map(ServiceTime::Fixed);
        };
        let number = |text: &str, max: f64| text.parse().ok().filter(|number| (0.0..=max).contains(number));
        match (name, &*parameters.split(',').collect::<Vec<_>>()) {
            ("exp", [mean]) => Ok(ServiceTime::Exponential(parse_duration(mean)?)),
            ("bimodal", [short, long, share]) => Ok(ServiceTime::Bimodal {
                short: parse_duration(short)?,
                long: parse_duration(long)?,
                share: number(share, 1.0).ok_or("the share of long times is from 0 to 1, such as 0.1")?,
            }),
            ("lognormal", [median, sigma]) => Ok(ServiceTime::Lognormal {
                median: parse_duration(median)?,
                sigma: number(sigma, MAX_SIGMA).ok_or_else(|| format!("SIGMA is from 0 to {MAX_SIGMA}, such as 1"))?,
            }),
            _ => Err("write a time, exp:MEAN, bimodal:SHORT,LONG,SHARE or lognormal:MEDIAN,SIGMA, such as \
                      bimodal:10us,100us,0.1"
                .to_owned()),
        }
    }
}

impl fmt::Display for ServiceTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |time: &Duration| format_duration(*time);
        match self {
            ServiceTime::Fixed(fixed) => f.write_str(&time(fixed)),
            ServiceTime::Exponential(mean) => write!(f, "exp:{}", time(mean)),
            ServiceTime::Bimodal { short, long, share } => {
                write!(f, "bimodal:{},{},{share}", time(short), time(long))
            }
            ServiceTime::Lognormal { median, sigma } => write!(f, "lognormal:{},{sigma}", time(median)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXTS: [&str; 5] = ["0", "20us", "exp:10us", "bimodal:10us,100us,0.1", "lognormal:10us,0.5"];

    fn draws(text: &str) -> Vec<f64> {
        let (time, mut rng) = (text.parse::<ServiceTime>().unwrap(), Rng::with_seed(1));
        std::iter::repeat_with(|| time.draw(&mut rng).as_secs_f64() * 1e6).take(100_000).collect()
    }

    #[test]
    fn draws_have_the_mean_of_their_distribution() {
        for (text, mean) in TEXTS.into_iter().zip([0.0, 20.0, 10.0, 19.0, 11.331_5]) {
            let drawn = draws(text);
            let average = drawn.iter().sum::<f64>() / drawn.len() as f64;
            // The standard deviation of the average is at most 0.8 % of the mean, that of exp 0.3 %.
            assert!((average - mean).abs() <= 0.02 * mean, "{text}: {average}");
            let expected = text.parse::<ServiceTime>().unwrap().mean().as_secs_f64() * 1e6;
            assert!((expected - mean).abs() < 0.001, "{text}: {expected}");
        }
    }

    #[test]
    fn draws_have_the_shape_of_their_distribution() {
        let part = |text: &str, over: f64| draws(text).iter().filter(|time| **time > over).count() as f64 / 100_000.0;
        for (text, over, expected) in [
            ("exp:10us", 30.0, 0.049_8),
            ("bimodal:10us,100us,0.1", 10.0, 0.1),
            ("lognormal:10us,0.5", 10.0, 0.5),
            // Two standard deviations.
            ("lognormal:10us,0.5", 27.183, 0.022_75),
        ] {
            assert!((part(text, over) - expected).abs() < 0.005, "{text}: {}", part(text, over));
        }
    }

    #[test]
    fn equal_seeds_draw_equal_times() {
        assert_eq!(draws("lognormal:10us,1"), draws("lognormal:10us,1"));
    }

    #[test]
    fn distributions_are_parsed_and_formatted() {
        for text in TEXTS {
            assert_eq!(text.parse::<ServiceTime>().unwrap().to_string(), text);
        }
        for (text, part) in [
            ("10", "write a number and us"),
            ("exp:0", "write a number and us"),
            ("exp:0us", "must be positive"),
            ("exp:10us,2", "bimodal:SHORT"),
            ("uniform:10us", "exp:MEAN"),
            ("bimodal:10us,20us", "exp:MEAN"),
            ("bimodal:10us,20us,1.1", "from 0 to 1"),
            ("lognormal:10us,-1", "from 0 to 3"),
            ("lognormal:10us,NaN", "from 0 to 3"),
        ] {
            let error = text.parse::<ServiceTime>().unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
