//! The program that has VFS as a library: a component in place of a VFS, which does as it is told what the benchmark
//! does with system calls elsewhere, and says how long it took.

use anyhow::anyhow;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_components::{Context, Main, Refusal, Reply, Request};
use holdfast_stack::protocol::File;
use holdfast_stack::{Client, Views};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::process::ExitCode;
use std::time::Instant;

/// The component, with views that are read by system calls, and in memory.
pub const COMPONENTS: [(&str, Main); 2] = [("bench-client", reading), ("bench-client-mapped", mapped)];

/// Work with files. Times are for one, in seconds.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
pub enum Order {
    /// Opens and closes a file so many times.
    Open { path: String, times: u32 },
    /// Goes through all directories; the answer has the number of files and directories.
    Enumerate { path: String },
    /// Opens the file that the next two read.
    Hold { path: String },
    /// Reads single bytes at these offsets.
    ReadOne { places: Vec<u64> },
    /// Reads all of it, so many bytes at a time.
    ReadAll { step: u32 },
}

/// The result of a run of requests.
#[derive(
    Clone, Copy, PartialEq, Debug, Default, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
pub struct Measurement {
    /// Of one.
    pub seconds: f64,
    /// Bytes, or files and directories.
    pub amount: u64,
}

fn reading(context: Context) -> ExitCode {
    run(context, Views::Read)
}

fn mapped(context: Context) -> ExitCode {
    run(context, Views::Mapped)
}

fn run(context: Context, views: Views) -> ExitCode {
    let client = match Client::new(&context, views) {
        Ok(client) => client,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let held = Mutex::new(None);
    let answer = move |request: Request| -> Reply {
        let done = request.question().and_then(|order: Order| {
            carry_out(&client, &mut held.lock(), order).map_err(|error| Refusal::Failed(format!("{error:#}")))
        });
        done.into()
    };
    match context.ports.serve_owned(1, answer) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn carry_out(client: &Client, held: &mut Option<File>, order: Order) -> anyhow::Result<Measurement> {
    let failed = |code: i32| anyhow!("{}", std::io::Error::from_raw_os_error(code));
    let began = Instant::now();
    let taken = |times: usize, amount| Measurement {
        seconds: began.elapsed().as_secs_f64() / times.max(1) as f64,
        amount,
    };
    match order {
        Order::Open { path, times } => {
            for _ in 0..times {
                client.close(&client.open(&path).map_err(failed)?);
            }
            Ok(taken(times as usize, 0))
        }
        Order::Enumerate { path } => {
            let root = client.open(&path).map_err(failed)?;
            let (mut left, mut found) = (vec![root], 0);
            while let Some(directory) = left.pop() {
                found += 1;
                for (_, file) in client.list(&directory).map_err(failed)? {
                    match file.is_directory {
                        true => left.push(file),
                        false => {
                            found += 1;
                            client.close(&file);
                        }
                    }
                }
                client.close(&directory);
            }
            Ok(taken(1, found))
        }
        Order::Hold { path } => {
            let before = held.replace(client.open(&path).map_err(failed)?);
            before.iter().for_each(|file| client.close(file));
            Ok(taken(1, 0))
        }
        Order::ReadOne { places } => {
            let file = held.as_ref().ok_or_else(|| anyhow!("no file is open"))?;
            let mut sum = 0;
            for place in &places {
                sum += client.read(file, *place, 1).map_err(failed)?.len() as u64;
            }
            Ok(taken(places.len(), sum))
        }
        Order::ReadAll { step } => {
            let file = held.as_ref().ok_or_else(|| anyhow!("no file is open"))?;
            let mut at = 0;
            while at < file.size {
                at += client.read(file, at, step as usize).map_err(failed)?.len() as u64;
            }
            Ok(taken(1, at))
        }
    }
}
