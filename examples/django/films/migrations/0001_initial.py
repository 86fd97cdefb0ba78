"""The table of films."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """As `manage.py makemigrations` made it."""

    initial = True
    dependencies = []
    operations = [
        migrations.CreateModel(
            name="Film",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("scene", models.CharField(max_length=200)),
                ("frames", models.PositiveIntegerField(default=25)),
                ("gpu", models.CharField(blank=True, max_length=200)),
                ("fence", models.BigIntegerField(default=0)),
            ],
        ),
    ]
