"""llmi inside other programs. Each module needs the program that it is named after."""
