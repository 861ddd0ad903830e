//! Examines disks for tests as if they were to be adopted: each line of input is the path of an image, each
//! line of output what FSLoader and the FSCheckers reported about it.

use holdfast_components::run_if_component;
use holdfast_log::device::{Device, FileDevice};
use holdfast_stack::{COMPONENTS, FoundPartition, Partition, Source, check_partitions, find_partitions};
use std::io::stdin;
use std::process::ExitCode;
use std::sync::Arc;

fn look(path: &str) -> Result<String, String> {
    let device = FileDevice::open(path.as_ref()).map_err(|error| error.to_string())?;
    let bytes = device.size_bytes();
    let source: Source = Arc::new(move |offset, into| {
        let end = offset.checked_add(into.len() as u64).filter(|end| *end <= bytes);
        end.ok_or("beyond the end")?;
        device.read_at(offset, into).map_err(|error| error.to_string())
    });
    let found = find_partitions(source.clone(), bytes, &|| true).map_err(|error| error.to_string())?;
    let mut partitions = Vec::new();
    for FoundPartition { number, start, bytes: length, holds } in found {
        let geometry = holds?;
        let partition = Partition { number, start, bytes: length, geometry };
        partition.check(bytes).map_err(|error| error.to_string())?;
        partitions.push(partition);
    }
    let owner_of = Arc::new(|_, path: &str| path.len() as u16);
    let surveys =
        check_partitions(source, &partitions, owner_of, &|| true).map_err(|error| error.to_string())?;
    let words = surveys.iter().map(|survey| {
        let blocks: u64 = survey.files.iter().map(|(_, count, _)| count).sum();
        let verdict = if survey.is_unsound { "unsound" } else { "sound" };
        format!("{verdict} {} problems {blocks} blocks", survey.problems_all)
    });
    Ok(words.collect::<Vec<_>>().join(", "))
}

fn main() -> ExitCode {
    if let Some(code) = run_if_component(COMPONENTS) {
        return code;
    }
    for path in stdin().lines() {
        match look(&path.expect("text")) {
            Ok(words) => println!("{words}"),
            Err(words) => println!("refused: {}", words.replace('\n', " ")),
        }
    }
    ExitCode::SUCCESS
}
