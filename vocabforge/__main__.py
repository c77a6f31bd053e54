"""``python -m vocabforge`` and ``accelerate launch -m vocabforge``."""

from vocabforge.cli import main

if __name__ == "__main__":
    main()
