//! Searching below a directory for names, within bounds.

use super::address::display_name;
use super::view::{Kind, Row, View, ViewError};
use std::time::{Duration, Instant};

/// Most names in the result.
const FOUND_MAX: usize = 200;
/// Most names that are compared with the text.
const LOOKED_MAX: usize = 50_000;
/// The longest time that one search takes.
const TIME_MAX: Duration = Duration::from_secs(5);
/// How many names are read at once.
const PAGE: usize = 500;
/// The longest path that is followed, in bytes.
const PATH_BYTES_MAX: usize = 4096;

/// The result of a search.
pub struct SearchHits {
    /// The paths found, each with its entry.
    pub rows: Vec<(Vec<Vec<u8>>, Row)>,
    /// How many names were compared.
    pub looked: usize,
    /// Whether all names were compared.
    pub is_whole: bool,
}

/// The paths below `path` whose last name contains `text`, ignoring case. Directories nearest to `path` come
/// first.
///
/// # Errors
/// [`ViewError`].
pub fn search(view: &dyn View, path: &[Vec<u8>], text: &str) -> Result<SearchHits, ViewError> {
    let until = Instant::now() + TIME_MAX;
    let wanted = text.to_lowercase();
    let mut hits = SearchHits { rows: Vec::new(), looked: 0, is_whole: true };
    let mut directories = std::collections::VecDeque::from([path.to_vec()]);
    while let Some(directory) = directories.pop_front() {
        let mut after: Option<Vec<u8>> = None;
        loop {
            let listing = match view.list(&directory, after.as_deref(), PAGE) {
                // A directory that cannot be read does not end the search; one whose content was altered
                // does.
                Err(view_error) if !view_error.is_false && directory.len() > path.len() => {
                    hits.is_whole = false;
                    break;
                }
                listing => listing?,
            };
            for row in listing.rows {
                after = Some(row.name.clone());
                hits.looked += 1;
                let matches = display_name(&row.name).to_lowercase().contains(&wanted);
                if hits.rows.len() >= FOUND_MAX || hits.looked > LOOKED_MAX || Instant::now() > until {
                    hits.is_whole = false;
                    return Ok(hits);
                }
                if !matches && row.kind != Kind::Directory {
                    continue;
                }
                let below = [&directory[..], std::slice::from_ref(&row.name)].concat();
                if row.kind == Kind::Directory
                    && below.iter().map(|name| name.len() + 1).sum::<usize>() <= PATH_BYTES_MAX
                {
                    directories.push_back(below.clone());
                }
                if matches {
                    hits.rows.push((below, row));
                }
            }
            if !listing.more {
                break;
            }
        }
    }
    Ok(hits)
}
