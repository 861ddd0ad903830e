//! Pages as text. They contain no programs, and everything inserted into them is escaped.

use super::address::{display_name, encoded, encoded_path, escape};
use super::search::SearchHits;
use super::view::{Banner, BannerStyle, Change, Kind, Listing, OpenFile, Row, TreeSummary};
use crate::moment::moment;

/// The preview of a file on its page.
pub enum Preview {
    /// As an image, which is loaded from its own address.
    Image,
    /// As text; the flag tells whether it is cut.
    Text(String, bool),
    /// There is no preview.
    None,
}

/// A whole page.
pub fn page(about: &TreeSummary, path: &[Vec<u8>], content: &str) -> String {
    let title = escaped_line(&about.title);
    let banners: String = about.banners.iter().map(banner).collect();
    let facts: String = about
        .facts
        .iter()
        .map(|(name, value)| format!("<dt>{name}</dt><dd>{}</dd>\n", escaped_line(value)))
        .collect();
    let release = match about.is_release {
        true => format!(
            "<section class=\"card\"><h2>Who signed it</h2><dl>\n{facts}</dl>\n<p class=\"bar\"><a class=\"button\" \
             href=\"/changes\">What changed since the last release</a><a class=\"button\" href=\"/verify/{}\">Verify it in this browser</a></p></section>\n",
            escape(&for_the_verifier(about)),
        ),
        false => String::new(),
    };
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\">\n<title>{here}{title}</title>\n<link rel=\"stylesheet\" \
         href=\"/style.css\">\n</head>\n<body>\n<header><h1>{title}</h1></header>\n<main>\n{banners}<section \
         class=\"card\">\n{crumbs}\n{content}</section>\n{release}</main>\n<footer>Holdfast gateway</footer>\n</body>\n</html>\n",
        here = path.last().map_or(String::new(), |name| format!("{} - ", escape(&display_name(name)))),
        crumbs = crumbs(path),
    )
}

/// The part of a page from which the verifier learns the release's id, and the mirrors that a browser can
/// reach.
fn for_the_verifier(about: &TreeSummary) -> String {
    let of = |wanted| about.facts.iter().filter(move |(name, _)| *name == wanted).map(|(_, value)| value);
    let mut text = of("ID").map(|id| format!("#id={id}")).collect::<String>();
    for mirror in of("Mirror").filter(|mirror| mirror.starts_with("http")) {
        text += &format!("&mirror={}", encoded(mirror.as_bytes()));
    }
    text
}

/// Text of others on one line, with markup and hidden characters escaped.
fn escaped_line(text: &str) -> String {
    escape(&display_name(text.replace('\n', " ").as_bytes()))
}

/// A banner: a message to the reader above the content.
pub fn banner(banner: &Banner) -> String {
    let class = match banner.mood {
        BannerStyle::Good => "good",
        BannerStyle::Warn => "warn",
        BannerStyle::Bad => "bad",
        BannerStyle::Plain => "plain",
    };
    let lines: String = banner.lines.iter().map(|line| format!("<li>{}</li>", escaped_line(line))).collect();
    let lines = if lines.is_empty() { lines } else { format!("<ul>{lines}</ul>") };
    let role = if banner.mood == BannerStyle::Bad { " role=\"alert\"" } else { "" };
    format!("<div class=\"banner {class}\"{role}><p>{}</p>{lines}</div>\n", escaped_line(&banner.head))
}

/// A message in place of content.
pub fn message(mood: BannerStyle, head: &str, lines: &[String]) -> String {
    banner(&Banner { mood, head: head.to_owned(), lines: lines.to_vec() })
}

fn crumbs(path: &[Vec<u8>]) -> String {
    let mut text = String::from("<nav class=\"crumbs\" aria-label=\"Path\"><a href=\"/at/\">top</a>");
    for (index, name) in path.iter().enumerate() {
        let name = escape(&display_name(name));
        text += " / ";
        text += &match index + 1 == path.len() {
            true => format!("<span aria-current=\"page\">{name}</span>"),
            false => format!("<a href=\"/at{}\">{name}</a>", encoded_path(&path[..=index])),
        };
    }
    text + "</nav>"
}

/// The form that searches below a directory.
fn find(path: &[Vec<u8>], text: &str) -> String {
    format!(
        "<form class=\"bar\" role=\"search\" method=\"get\" action=\"/at{}\"><input type=\"search\" name=\"find\" value=\"{}\" \
         aria-label=\"Part of a name\" placeholder=\"Part of a name\" autocomplete=\"off\" required><button name=\"how\" \
         value=\"search\">Search here</button><button name=\"how\" value=\"exact\">Look up this name</button></form>\n",
        slashed(path),
        escape(text)
    )
}

/// A path as part of an address; `/` for the root.
fn slashed(path: &[Vec<u8>]) -> String {
    if path.is_empty() { "/".to_owned() } else { encoded_path(path) }
}

/// The page of a directory.
pub fn directory(path: &[Vec<u8>], listing: &Listing, after: Option<&[u8]>) -> String {
    let mut text = find(path, "");
    let names = listing
        .total
        .map_or(String::new(), |total| format!("{total} {}", if total == 1 { "name" } else { "names" }));
    if listing.opaque {
        return text
            + &message(
                BannerStyle::Plain,
                "This directory does not show its names.",
                &[format!("It has {names}. Look one up above.")],
            );
    }
    if listing.rows.is_empty() && after.is_none() {
        return text + "<p class=\"soft\">This directory is empty.</p>\n";
    }
    text += "<table><thead><tr><th>Name</th><th class=\"size\">Size</th><th class=\"time\">Changed</th></tr></thead><tbody>\n";
    for one in &listing.rows {
        let below = [path, std::slice::from_ref(&one.name)].concat();
        text += &row(&below, one, &display_name(&one.name));
    }
    text += "</tbody></table>\n<p class=\"bar\">";
    if after.is_some() {
        text += &format!("<a class=\"button\" href=\"/at{}\">From the beginning</a>", slashed(path));
    }
    if let (true, Some(last)) = (listing.more, listing.rows.last()) {
        text += &format!(
            "<a class=\"button\" href=\"/at{}?after={}\">More</a>",
            slashed(path),
            encoded(&last.name)
        );
    }
    text + &format!("<span class=\"soft\">{names}</span></p>\n")
}

fn row(path: &[Vec<u8>], row: &Row, text: &str) -> String {
    let (mark, slash, note) = match row.kind {
        Kind::Directory => ("▸", "/", String::new()),
        Kind::Link => (
            "↪",
            "",
            row.target
                .as_ref()
                .map_or(String::new(), |target| format!(" → {}", escape(&display_name(target)))),
        ),
        Kind::File => ("", "", String::new()),
        Kind::Other(what) => ("∗", "", format!(" ({what})")),
    };
    let bytes = if row.kind == Kind::File { size(row.size) } else { String::new() };
    format!(
        "<tr><td class=\"name\"><span class=\"mark\" aria-hidden=\"true\">{mark}</span><a href=\"/at{}\">{}{slash}</a><span \
         class=\"soft\">{note}</span></td><td class=\"size\">{bytes}</td><td class=\"time\">{}</td></tr>\n",
        encoded_path(path),
        escape(text),
        day(row.modified_s),
    )
}

/// The page of a file.
pub fn file(path: &[Vec<u8>], opened: &OpenFile, preview: &Preview) -> String {
    let raw = format!("/raw{}", encoded_path(path));
    let name = path.last().map_or(String::new(), |name| escape(&display_name(name)));
    let mut text = format!(
        "<p class=\"bar\"><a class=\"button\" href=\"{raw}?download=1\">Download</a><span class=\"soft\">{}, changed {}</span></p>\n",
        size(opened.size),
        u64::try_from(opened.modified_s).map_or("before 1970".to_owned(), moment),
    );
    text += &match preview {
        Preview::Image => format!("<div class=\"preview\"><img src=\"{raw}\" alt=\"{name}\"></div>\n"),
        Preview::Text(content, cut) => {
            let note = if *cut { "<p class=\"soft\">This is only its beginning.</p>" } else { "" };
            // HTML parsers drop one line end after the tag.
            format!(
                "<div class=\"preview\"><pre tabindex=\"0\" aria-label=\"Content of the file\">\n{}</pre>{note}</div>\n",
                escape(content)
            )
        }
        Preview::None => "<p class=\"soft\">There is no preview of such a file.</p>\n".to_owned(),
    };
    text
}

/// The page with the result of a search.
pub fn found(path: &[Vec<u8>], text: &str, hits: &SearchHits) -> String {
    let count = hits.rows.len();
    let why = match hits.is_whole {
        true => format!("{count} found among {} names.", hits.looked),
        false => format!(
            "The first {count}, among {} names; there was no time or room for more. Search further below, or for more of the name.",
            hits.looked
        ),
    };
    let rows: String = hits
        .rows
        .iter()
        .map(|(below, one)| {
            let text =
                below[path.len()..].iter().map(|name| display_name(name)).collect::<Vec<_>>().join("/");
            row(below, one, &text)
        })
        .collect();
    format!("{}<p class=\"soft\">{why}</p>\n<table><tbody>\n{rows}</tbody></table>\n", find(path, text))
}

/// The page with the changes since the last release.
pub fn changes(changes: &[Change], limit: usize) -> String {
    let head = match changes.len() {
        0 => "Nothing: the two trees are the same.".to_owned(),
        count if count >= limit => format!("The first {count} changes that were found."),
        1 => "1 change.".to_owned(),
        count => format!("{count} changes."),
    };
    let items: String = changes
        .iter()
        .map(|change| {
            let path: Vec<Vec<u8>> = change.path.split(|byte| *byte == b'/').map(<[u8]>::to_vec).collect();
            let name = escape(&path.iter().map(|name| display_name(name)).collect::<Vec<_>>().join("/"));
            let (class, name) = match change.mark {
                '-' => ("removed", name),
                '+' => ("added", format!("<a href=\"/at{}\">{name}</a>", encoded_path(&path))),
                _ => ("", format!("<a href=\"/at{}\">{name}</a>", encoded_path(&path))),
            };
            let Change { mark, what, .. } = change;
            format!("<li class=\"{class}\"><span class=\"mark\" aria-hidden=\"true\">{mark}</span>{name} <span class=\"soft\">{what}</span></li>\n")
        })
        .collect();
    format!(
        "<h2>What changed since the last release</h2><p class=\"soft\">{head}</p>\n<ul class=\"changes\">\n{items}</ul>\n"
    )
}

fn day(seconds: i64) -> String {
    u64::try_from(seconds).map_or(String::new(), |seconds| moment(seconds).chars().take(10).collect())
}

/// A size in words.
fn size(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} byte{}", if bytes == 1 { "" } else { "s" });
    }
    let mut value = bytes as f64 / 1024.0;
    let mut units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"].iter();
    let mut unit = units.next().expect("the first");
    while value >= 1024.0 {
        let Some(next) = units.next() else { break };
        value /= 1024.0;
        unit = next;
    }
    if value < 10.0 { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
}
