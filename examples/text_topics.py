"""Five sentences of each topic make a classifier of sentences; beside it logistic regression on the same features.

In a clone of the repository:

pip install -c constraints.txt '.[text,sklearn]'
python examples/text_topics.py
"""

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestCentroid

from e3bm import TextClassifier

TOPICS = {
    "billing": [
        "I was charged twice this month.",
        "Where can I download my invoice?",
        "Please refund the last payment.",
        "My credit card was declined at checkout.",
        "How much does the yearly plan cost?",
    ],
    "login": [
        "I forgot my password.",
        "The reset email for my account never arrives.",
        "Two-factor codes are rejected.",
        "My account is locked after three attempts.",
        "How do I change the email address I sign in with?",
    ],
    "shipping": [
        "My parcel has not arrived yet.",
        "Can I change the delivery address?",
        "The tracking number does not work.",
        "How long does delivery to Norway take?",
        "The box was damaged when the courier brought it.",
    ],
}
NEW = [
    ("billing", "The amount on the bill is wrong."),
    ("billing", "I want my money back."),
    ("login", "I cannot sign in with my new password."),
    ("login", "It says that my user name does not exist."),
    ("shipping", "The courier left the package at the wrong house."),
    ("shipping", "When will my order be delivered?"),
]

model = TextClassifier().fit(TOPICS)
answers = model.predict([text for _, text in NEW])
for (topic, text), found in zip(NEW, answers, strict=True):
    print(f"{found.label:<9} {100 * found.confidence:5.1f} %  {text}  ({topic})")
print("and a sentence of no topic:", model.predict("The recipe needs two eggs and some butter.").unknown)

rows = np.concatenate([model.features(texts) for texts in TOPICS.values()])
labels = np.repeat(list(TOPICS), [len(texts) for texts in TOPICS.values()])
asked, truth = model.features([text for _, text in NEW]), [topic for topic, _ in NEW]
print(f"right: TextClassifier {np.mean([one.label == name for one, name in zip(answers, truth, strict=True)]):.2f}")
for rival in (LogisticRegression(), NearestCentroid()):
    print(f"right: {type(rival).__name__} {np.mean(rival.fit(rows, labels).predict(asked) == np.array(truth)):.2f}")
