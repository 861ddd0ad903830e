//! Medians, ratios and their intervals; what a benchmark prints.

use serde::Serialize;
use std::path::Path;
use std::time::{Duration, Instant};

/// What one measured stretch took.
#[derive(Clone, Copy, Debug)]
pub struct Measurement {
    /// Seconds that passed.
    pub wall: f64,
    /// Processor seconds of this process, user and system, all threads.
    pub cpu: f64,
}

/// Measures a stretch of work.
pub fn measure<T>(work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<(Measurement, T)> {
    let cpu = cpu_seconds();
    let start = Instant::now();
    let result = work()?;
    let wall = start.elapsed().as_secs_f64();
    Ok((Measurement { wall, cpu: cpu_seconds() - cpu }, result))
}

/// User and system time of this process.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// A measured quantity, over all rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// What was measured.
    pub name: String,
    /// Its unit.
    pub unit: &'static str,
    /// Median over the rounds.
    pub median: f64,
    /// Every round, in order.
    pub rounds: Vec<f64>,
    /// Processor microseconds an operation (median), where measured.
    pub cpu_us: Option<f64>,
}

/// A ratio between two things measured in turns.
#[derive(Clone, Debug, Serialize)]
pub struct Ratio {
    /// What is compared.
    pub name: String,
    /// Geometric mean of the pairs' ratios.
    pub ratio: f64,
    /// 95% interval of that mean.
    pub low: f64,
    /// 95% interval of that mean.
    pub high: f64,
    /// How many pairs.
    pub pairs: usize,
}

/// All that a benchmark found.
#[derive(Default, Serialize)]
pub struct Report {
    /// Figures.
    pub figures: Vec<Figure>,
    /// Ratios.
    pub ratios: Vec<Ratio>,
}

impl Report {
    /// Adds a figure.
    pub fn figure(&mut self, name: &str, unit: &'static str, rounds: &[f64], cpu_us: &[f64]) {
        let cpu_us = (!cpu_us.is_empty()).then(|| median(cpu_us));
        let rounds = rounds.to_vec();
        self.figures.push(Figure { name: name.to_owned(), unit, median: median(&rounds), rounds, cpu_us });
    }

    /// Adds the ratio of `a` to `b`, round by round.
    pub fn ratio(&mut self, name: &str, a: &[f64], b: &[f64]) {
        let logs: Vec<f64> = a.iter().zip(b).map(|(a, b)| (a / b).ln()).collect();
        let (mean, half) = interval(&logs);
        let name = name.to_owned();
        let (ratio, low, high) = (mean.exp(), (mean - half).exp(), (mean + half).exp());
        self.ratios.push(Ratio { name, ratio, low, high, pairs: logs.len() });
    }

    /// Prints everything, and writes it as JSON if asked to.
    pub fn finish(&self, json: Option<&Path>) -> anyhow::Result<()> {
        println!("\n{:<52} {:>12} {:>8}  {:>14}", "", "median", "", "CPU us an op");
        for figure in &self.figures {
            let cpu = figure.cpu_us.map_or(String::new(), |cpu| format!("{cpu:14.1}"));
            println!("{:<52} {:>12.1} {:>8}  {cpu}", figure.name, figure.median, figure.unit);
        }
        for ratio in &self.ratios {
            let Ratio { name, ratio, low, high, pairs } = ratio;
            println!("{name:<66} {ratio:>6.2} x        [{low:.2}, {high:.2}] over {pairs} pairs");
        }
        if let Some(path) = json {
            std::fs::write(path, serde_json::to_vec_pretty(self)?)?;
        }
        Ok(())
    }
}

/// The middle value.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => sorted[count / 2],
        count => (sorted[count / 2 - 1] + sorted[count / 2]) / 2.0,
    }
}

/// Microseconds.
pub fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

/// Mean and half width of its 95% interval (Student).
fn interval(values: &[f64]) -> (f64, f64) {
    const T: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
        2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048,
        2.045, 2.042,
    ];
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    if values.len() < 2 {
        return (mean, f64::INFINITY);
    }
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let t = T.get(values.len() - 2).copied().unwrap_or(1.96);
    (mean, t * (variance / count).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves the interval against a worked example: 1..=5 has mean 3 and half width 2.776 * sqrt(2.5 / 5).
    #[test]
    fn intervals_are_students() {
        let (mean, half) = interval(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        assert!((mean - 3.0).abs() < 1e-9 && (half - 1.963).abs() < 1e-3, "{half}");
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
