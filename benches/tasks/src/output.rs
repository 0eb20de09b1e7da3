//! Lines of progress on standard output.

/// Prints the title of a section.
pub fn say(title: &str) {
    println!("\n== {title}");
}

/// Prints indented lines.
pub fn note(text: &str) {
    text.lines().for_each(|line| println!("   {line}"));
}
