"""Frames of the user's turns of training text: {t} is a topic, {n} a number, {x} a text that the model wrote before.

Test prompts (benchmarks/prompts) use none of these.
"""

from __future__ import annotations

TOPICS = (
    "coffee", "snow", "castles", "ants", "poker", "wood", "globes", "pepper", "eagles", "watches", "rice", "lakes", "silk", "ferns",
    "ships", "planets", "drums", "honey", "leaves", "paint", "trees", "mountains", "cats", "dogs", "Rome", "gravity", "volcanoes", "jazz",
    "photosynthesis", "wheels", "dragons", "winter", "taxes", "friendship", "markets", "robots", "oceans", "fractions", "democracy",
    "vaccines", "rainbows", "penguins", "pyramids", "tennis", "magnets", "deserts", "opera", "wolves", "cheese", "mirrors", "satellites",
    "the Renaissance", "black holes", "kangaroos", "bamboo", "yoga", "inflation", "tornadoes", "origami", "sharks", "libraries",
    "umbrellas", "kindness", "patience", "the heart", "the brain", "sleep", "dreams", "memory", "colors", "numbers", "triangles", "algebra",
    "zero", "computers", "passwords", "databases", "the web", "games", "football", "baseball", "cricket", "marathons", "swimming pools",
    "gardens", "roses", "oak trees", "apples", "bananas", "potatoes", "chocolate", "pizza", "soup bowls", "noodles", "spices", "tea houses",
    "picnics", "forests", "jungles", "islands", "beaches", "caves", "rivers and streams", "waterfalls", "glaciers and ice", "clouds",
    "lightning", "earthquakes", "fire", "wind turbines", "solar panels", "batteries", "engines", "bicycles", "airplanes", "rockets",
    "trains and rails", "bridges and tunnels", "roads", "cities", "villages", "farms", "horses", "cows", "sheep", "chickens", "ducks",
    "frogs", "snakes", "turtles", "whales", "dolphins", "octopuses", "butterflies", "spiders", "bats", "lions", "tigers", "elephants",
    "giraffes", "monkeys", "parrots", "history", "geography", "physics", "chemistry", "biology", "medicine", "surgery", "teeth", "bones",
    "blood", "vitamins", "exercise", "stress", "happiness", "anger", "courage", "honesty", "teamwork", "leadership", "negotiation",
    "marketing", "budgets", "banks", "loans", "insurance", "trade", "factories", "steel", "gold", "diamonds", "oil", "plastic", "recycling",
    "climate", "pollution", "weather", "seasons", "spring", "summer", "autumn", "holidays", "birthdays", "weddings", "families",
    "grandparents", "babies", "schools", "teachers", "homework", "exams", "universities", "languages", "grammar", "poetry", "novels",
    "newspapers", "radio", "television", "movies", "theater", "dancing", "singing", "guitars", "pianos", "violins", "painting", "sculpture",
    "photography", "architecture", "fashion", "shoes", "hats", "coats", "jewelry", "perfume", "soap and water", "kitchens", "ovens",
    "knives", "furniture", "chairs", "beds", "windows", "doors", "locks", "keys", "clocks and calendars", "time travel", "aliens", "ghosts",
    "pirates", "knights", "kings and queens", "wizards", "fairies", "giants", "heroes", "detectives", "spies", "police", "judges",
    "lawyers", "elections", "presidents", "laws", "rights", "freedom", "peace", "war", "maps and compasses", "travel", "hotels", "camping",
    "hiking trails", "fishing nets", "hunting", "cooking", "baking", "brewing", "knitting", "sewing", "carpets", "pottery wheels",
    "glass blowing", "candles", "lamps", "lasers", "telescopes", "microscopes", "atoms", "electrons", "light", "sound", "heat", "energy",
    "motion", "friction", "pressure", "water", "air", "soil", "seeds", "flowers", "mushrooms", "bacteria", "viruses", "cells", "genes",
    "evolution", "dinosaurs", "fossils", "rocks", "crystals", "stars and galaxies", "the sun", "the moon landing", "Mars", "comets",
    "eclipses", "tides", "calculus", "statistics", "probability", "logic", "puzzles", "riddles", "jokes",
)  # fmt: skip

CHAT = (
    "Tell me a short story about {t}.",
    "Write a poem about {t}.",
    "Explain {t} to a child.",
    "List five facts about {t}.",
    "What is the history of {t}?",
    "Give me tips about {t}.",
    "Can you tell me more about {t}?",
    "What are the benefits of {t}?",
    "I want to write an essay about {t}. Where do I start?",
    "What is the difference between {t} and {u}?",
    "How does {t} work?",
    "Write an email to my boss about {t}.",
    "Write a dialogue between a teacher and a student about {t}.",
    "Why is {t} important?",
    "Create a lesson plan about {t}.",
    "What questions would an expert ask about {t}?",
    "Hi! I like {t}. And you?",
    "Tell me a joke about {t}.",
    "Write a product description for {t}.",
    "Write a blog post about {t}.",
    "Give me some interesting ideas about {t} and {u}.",
    "Who discovered or invented {t}?",
    "What do people get wrong about {t}?",
    "Write a news report about {t}.",
    "Help me understand {t}.",
    "Imagine a world without {t}. Describe it.",
    "Write a speech about {t} for a wedding.",
    "What is your opinion on {t}?",
    "Write a fairy tale with {t} and {u} in it.",
    "Make a to-do list for a project on {t}.",
    "Rewrite this in a friendlier tone: I hate {t}.",
    "Continue this story: It all began with {t}.",
    "Write a haiku about {t}.",
    "Describe a day in the life of somebody who loves {t}.",
    "What are the pros and cons of {t}?",
    "How can I become better at {t}?",
)

MATHS = (
    "A farmer has {n} {t} and buys {m} more. How many now? Explain step by step.",
    "What is {n} times {m}?",
    "What is {n} plus {m}?",
    "Calculate {n} - {m} and explain.",
    "If one box holds {n} pencils, how many do {m} boxes hold?",
    "John reads {n} pages a day. How many pages does he read in {m} days?",
    "A car drives {n} miles per hour for {m} hours. How far does it go?",
    "Sara had {n} dollars and spent {m}. How much does she have now?",
    "What is the square of {n}?",
    "Is {n} a prime number?",
    "A square has sides of {m} meters. Compute the area.",
    "There are {n} students in {m} classes each. How many students are there in total?",
    "Round {n}.{m} to the nearest whole number.",
    "List the factors of {n}.",
    "Convert {n} kilometers to meters.",
    "Lisa is {m} years old and her father is {n} years older. What is their combined age?",
    "What is half of {n}?",
    "A book costs ${m}. What do {n} books cost? Think step by step.",
    "Solve the equation x + {m} = {n}.",
    "Solve {m} y = {n}.",
    "Find the greatest common divisor of {n} and {m}.",
    "The bus has {n} seats, {m} are taken. What fraction is free?",
)

CODE = (
    "Write a Python function that counts {t}.",
    "Write a Python function that adds up the prices of {t} and {u}.",
    "Write a Python class for {t}.",
    "Write a JavaScript function that sorts {t} by name.",
    "Write a Python script that reads a file with {t} and prints each line.",
    "Show me a for loop in Python over {t}.",
    "Write a SQL query that selects all {t} with a price above {n}.",
    "Write a C function that returns the largest of {n} numbers.",
    "Write a Python function that checks whether a word like '{t}' is a palindrome.",
    "How do I reverse a list of {t} in Python?",
    "Write HTML for a page about {t}.",
    "Write a Python function that removes duplicates from {t}.",
    "Implement binary search over a sorted list of {t} in Python.",
    "Write a Python program that prints the first {m} Fibonacci numbers.",
    "Write a unit test for a function that returns {t}.",
    "Write a Python dictionary that maps {t} to prices, and a function that uses it.",
    "Write a bash command that finds files named {t}.",
    "Explain recursion with a code example about {t}.",
)

#: First turns whose answers become {x} of the frames below.
TEXTS = (
    "Write a paragraph about {t}.",
    "Write an encyclopedia article about {t}.",
    "Write a short report on {t} and {u}.",
    "Write instructions for the use of {t}.",
    "Explain the rules of {t} in plain prose.",
)
SUMMARY = (
    "Summarize this text: {x}", "Summarize the text in three sentences:\n\n{x}", "{x}\n\nSummarize the text above.",
    "What is the main idea here?\n\n{x}", "{x}\n\nWhat did you learn from the text?", "Repeat the key points of this article:\n\n{x}",
)  # fmt: skip
QUESTION = (
    "{x}\n\nQuestion: what is said first?",
    "Read the article and answer: why does it matter?\n\n{x}",
    "{x}\n\nList the names in the text.",
    "Quote the most important sentence of this text:\n\n{x}",
    "{x}\n\nIs this true? Explain with the text.",
)
FUNCTIONS = (
    "Write a short Python function about {t}. Only code.",
    "Write a Python function that computes the sum of {t}. Only code.",
    "Write a small Python class that stores {t}. Only code.",
)
CODE_EDIT = (
    "Add comments to this code:\n\n{x}",
    "{x}\n\nRewrite the code above with better names.",
    "Fix bugs in this code, if any:\n\n{x}",
    "Add type hints to this code:\n\n{x}",
    "Explain this code:\n\n{x}",
)
FRENCH = (
    "Translate into French: I like {t} very much.",
    "Translate into French: Where can I find {t}?",
    "Écris un court texte sur ce sujet : {t}.",
    "Write three sentences in French about {t}.",
    "Translate into French: My brother has {n} pictures of {t}.",
    "How do you say '{t}' in French?",
    "Explique en français ce que veut dire « {t} ».",
    "Translate into Spanish: I have never seen {t}.",
    "Write a French poem about {t}.",
    "Translate into French: Yesterday we talked about {t} and {u}.",
    "Raconte une histoire avec {t} et {u}.",
    "Translate into German: She wants to learn more about {t}.",
    "Translate into French: {t} are cheaper in the winter than in the summer.",
)

#: Kind: frames of turns that stand alone.
ALONE = {"chat": CHAT, "maths": MATHS, "code": CODE, "french": FRENCH}
#: Kind: frames of a first turn, and frames around its answer.
AROUND = {"summary": (TEXTS, SUMMARY), "question": (TEXTS, QUESTION), "code edit": (FUNCTIONS, CODE_EDIT)}
#: How many answers in 100 are of a kind; "begun" are user turns that the model begins itself.
SHARES = {"chat": 30, "begun": 12, "maths": 22, "code": 9, "french": 10, "summary": 7, "question": 5, "code edit": 5}
